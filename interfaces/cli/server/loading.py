"""Waiting for a model with the progress of its download and its load."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack

from application.ports.model_repository import DownloadProgress
from application.services.text_side.models.model_finder import ServedModel
from domain.byte_size import format_bytes
from domain.models.load_progress import LoadPhase, LoadProgress
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
                stages.show(service.pool.download, service.engine.status().loading, time.monotonic_ns())
            return await waiting
        finally:
            waiting.cancel()


class LoadStages:
    """One bar at a time: of the download, then of each phase of the load. `opened` closes the last one."""

    def __init__(self, name: str, opened: ExitStack) -> None:
        self._name = name
        self._opened = opened
        self._shown = "", 0
        self._bar: Meter | None = None

    def show(self, download: DownloadProgress | None, load: LoadProgress | None, now_ns: int) -> None:
        """Shows the download or the load that is under way; None for one that is not. `now_ns`: monotonic."""
        if download is not None:
            self._reach(f"downloading {self._name}", download.done_bytes, download.total_bytes)
        elif load is not None:
            amount = str if load.phase is LoadPhase.MEASURING else format_bytes
            what = f"{load.phase.value} {load.id}"
            self._reach(what, load.done, load.total, amount, load.seconds_left(now_ns))

    def _reach(
        self,
        what: str,
        done: int,
        total: int,
        amount: Callable[[int], str] = format_bytes,
        left_s: float | None = None,
    ) -> None:
        if (what, total) != self._shown or self._bar is None:
            self._opened.close()
            self._bar = self._opened.enter_context(progress(what, total, quiet=False, amount=amount))
            self._shown = what, total
        self._bar.reach(done, total, left_s)
