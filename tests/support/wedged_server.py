"""`cairn serve` on the toy engine, whose compute thread deadlocks in its first decode step: `FOLDER`.

Time is the machine's until then. Then it runs a thousand times as fast, up to a while after the engine counts as stuck,
and stands there until `FOLDER/go-on` exists: what is seen of a wedge does not depend on how quick the test is.
"""

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

from dependency_injector import providers

from adapters.config.loader import LoadedSettings
from adapters.fake.engine import FakeEngine
from adapters.fake.options import FakeOptions
from application.services.text_side import engine_watch
from application.settings import EngineSettings, ServerSettings, Settings, StoreSettings
from domain.ids import SequenceId
from interfaces.cli.logs import configure_logging
from interfaces.cli.serve import _run
from interfaces.composition.backends import fake_backend
from interfaces.composition.container import Container

STUCK_AFTER_S, STANDS_AT_S, EXIT_AFTER_S = 900, 1000, 1500
SPEED = 1000
S = 1_000_000_000


class WedgeClock:
    """A Clock."""

    def __init__(self, go_on: Path) -> None:
        self._go_on = go_on
        self._wedged_ns: int | None = None
        self._went_on_ns: int | None = None

    def now_ns(self) -> int:
        now_ns, since_ns = time.monotonic_ns(), self._wedged_ns
        if since_ns is None:
            return now_ns
        if self._went_on_ns is None and self._go_on.exists():
            self._went_on_ns = now_ns
        first_ns = min((now_ns - since_ns) * SPEED, STANDS_AT_S * S)
        return since_ns + first_ns + (0 if self._went_on_ns is None else (now_ns - self._went_on_ns) * SPEED)

    def unix_ns(self) -> int:
        return time.time_ns()

    def wedge(self) -> None:
        self._wedged_ns = time.monotonic_ns()


def main() -> None:
    clock, lock = WedgeClock(Path(sys.argv[1]) / "go-on"), threading.Lock()
    lock.acquire()

    def deadlock(operation: str, _sequence: SequenceId | None, _count: int) -> None:
        if operation == "decode":
            clock.wedge()
            lock.acquire()

    engine_watch.LOOK_S = 0.05
    settings = Settings(
        server=ServerSettings(port=0),
        engine=EngineSettings(backend="fake", stuck_after_s=STUCK_AFTER_S, exit_when_stuck_s=EXIT_AFTER_S),
        store=StoreSettings(kind="off"),
    )
    settings = replace(settings, model=replace(settings.model, default="fake-attention"))
    backend = replace(fake_backend(settings), engine_factory=lambda: FakeEngine({}, FakeOptions(hook=deadlock)))
    Container.backend.override(providers.Object(backend))
    Container.clock.override(providers.Object(clock))
    configure_logging("info", "plain")
    _run(LoadedSettings(settings, {}))


if __name__ == "__main__":
    main()
