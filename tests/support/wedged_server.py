"""`cairn serve` on the toy engine, whose compute thread deadlocks in its first decode step: `FOLDER`.

Time is the machine's until then. Then it moves with each look of who watches the engine, up to a while after that
counts as stuck, and stands there until `FOLDER/go-on` exists: what is seen of a wedge depends neither on how quick the
test is nor on how late a look comes, which would be a pause of the watch's own.
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
STEP_S = 25
"""For each time that the watch asks; a look asks a few times."""

S = 1_000_000_000


class WedgeClock:
    """A Clock."""

    def __init__(self, go_on: Path) -> None:
        self._go_on = go_on
        self._wedged_ns: int | None = None
        self._passed_s = 0

    def now_ns(self) -> int:
        since_ns = self._wedged_ns
        if since_ns is None:
            return time.monotonic_ns()
        is_watch = threading.current_thread().name == engine_watch._NAME
        if is_watch and (self._passed_s < STANDS_AT_S or self._go_on.exists()):
            self._passed_s += STEP_S
        return since_ns + self._passed_s * S

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
