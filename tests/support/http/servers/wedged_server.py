"""`cairn serve` on the toy engine, here a thread of the server, which deadlocks in its first decode step.

Time is the machine's until then. Then it moves with each look of the watch, up to a while after which the engine counts
as stuck, and stands there: what is seen of a wedge depends neither on how quick the test is nor on how late a look
comes, which would be a pause of the watch's own.
"""

import asyncio
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Any

from dependency_injector import providers

from adapters.config.loader import LoadedSettings
from adapters.engine_process.child import ChildProcess
from adapters.fake.engine import FakeEngine
from adapters.fake.options import FakeOptions
from application.services.text_side.supervision import engine_watch
from application.settings import EngineSettings, ServerSettings, Settings, StoreSettings
from domain.ids import SequenceId
from interfaces.cli.server import server_process
from interfaces.cli.terminal.logs import configure_logging
from interfaces.composition.backends import fake_backend
from interfaces.composition.container import Container
from interfaces.composition.engine_entry import new_event_loop
from interfaces.composition.service import Service, build_service

STANDS_AT_S = 1000
STEP_S = 25
"""For each time that the watch asks; a look asks a few times."""

S = 1_000_000_000


class WedgeClock:
    """A Clock."""

    def __init__(self) -> None:
        self._wedged_ns: int | None = None
        self._passed_s = 0

    def now_ns(self) -> int:
        since_ns = self._wedged_ns
        if since_ns is None:
            return time.monotonic_ns()
        is_watch = threading.current_thread().name == engine_watch._NAME
        if is_watch and self._passed_s < STANDS_AT_S:
            self._passed_s += STEP_S
        return since_ns + self._passed_s * S

    def unix_ns(self) -> int:
        return time.time_ns()

    def wedge(self) -> None:
        self._wedged_ns = time.monotonic_ns()


def main() -> None:
    clock, lock = WedgeClock(), threading.Lock()
    lock.acquire()

    def deadlock(operation: str, _sequence: SequenceId | None, _count: int) -> None:
        if operation == "decode":
            clock.wedge()
            lock.acquire()

    engine_watch.LOOK_S = 0.05
    settings = Settings(
        server=ServerSettings(port=0),
        engine=EngineSettings(backend="fake"),
        store=StoreSettings(kind="off"),
    )
    settings = replace(settings, model=replace(settings.model, default="fake-attention"))
    backend = replace(fake_backend(settings), engine_factory=lambda: FakeEngine({}, FakeOptions(hook=deadlock)))
    Container.backend.override(providers.Object(backend))
    Container.clock.override(providers.Object(clock))
    configure_logging("info", "plain")
    server_process.build_service = on_a_thread
    serving = partial(server_process.serve_until_stopped, LoadedSettings(settings, {}, {}), ChildProcess("unused"))
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serving())


def on_a_thread(settings: Settings, **overrides: Any) -> Service:
    return build_service(settings, **overrides | {"place": "thread"})


if __name__ == "__main__":
    main()
