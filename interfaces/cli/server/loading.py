"""Waiting for a model with the progress of its download and its load."""

import asyncio
from contextlib import ExitStack

from application.ports.engine import LoadProgress
from application.ports.model_repository import DownloadProgress
from application.services.text_side.models.model_finder import ServedModel
from interfaces.cli.terminal.progress import Meter, progress
from interfaces.composition.service import Service

POLL_INTERVAL_S = 0.5


async def wait_for_model(service: Service) -> ServedModel:
    """Waits for the default model. Raises what loading raised."""
    waiting = asyncio.ensure_future(service.ready())
    with ExitStack() as opened:
        stages = LoadStages(service.settings.model.default, opened)
        try:
            while not (await asyncio.wait([waiting], timeout=POLL_INTERVAL_S))[0]:
                stages.show(service.pool.download, service.engine.status().loading)
            return await waiting
        finally:
            waiting.cancel()


class LoadStages:
    """One bar at a time: of the download, then of the load. `opened` closes the last one."""

    def __init__(self, name: str, opened: ExitStack) -> None:
        self._name = name
        self._opened = opened
        self._what = ""
        self._bar: Meter | None = None

    def show(self, download: DownloadProgress | None, load: LoadProgress | None) -> None:
        """Shows the download or the load that is under way; None for one that is not."""
        if download is not None:
            self._reach(f"downloading {self._name}", download.done_bytes, download.total_bytes)
        elif load is not None:
            self._reach(f"loading {load.id}", load.done_bytes, load.total_bytes)

    def _reach(self, what: str, done_bytes: int, total_bytes: int) -> None:
        if what != self._what or self._bar is None:
            self._opened.close()
            self._bar = self._opened.enter_context(progress(what, total_bytes, quiet=False))
            self._what = what
        self._bar.reach(done_bytes, total_bytes)
