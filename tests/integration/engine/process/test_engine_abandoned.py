"""The watch over a server's engine ends an engine that is stuck, where it has a process of its own."""

from collections.abc import Callable

import pytest
from dependency_injector import providers

from adapters.fake.environment import FakeClock
from application.ports.engine import EngineStatus
from application.settings import EngineSettings, Settings, StoreSettings
from interfaces.composition.backends import STUCK_AFTER_CPU_S
from interfaces.composition.container import Container


class Stuck:
    """An engine that decodes for ever."""

    def __init__(self) -> None:
        self.num_abandoned = 0

    def status(self) -> EngineStatus:
        return EngineStatus(
            is_alive=True, is_busy=True, last_progress_ns=0, last_step_ns=0, num_waiting=0, num_running=1
        )

    def abandon(self) -> None:
        self.num_abandoned += 1


@pytest.mark.parametrize(("place", "num_abandoned"), [("process", 1), ("thread", 0)])
def test_a_stuck_engine_in_a_process_is_abandoned_once(place: str, num_abandoned: int) -> None:
    settings = Settings(engine=EngineSettings(backend="fake"), store=StoreSettings(kind="off"))
    engine, clock, calls = Stuck(), FakeClock(start_ns=0), list[Callable[[], None]]()
    container = Container(
        settings=providers.Object(settings), clock=providers.Object(clock), place=providers.Object(place)
    )
    for provider in (container.engine_process, container.engine_thread):
        provider.override(providers.Object(engine))  # pyright: ignore[reportUnknownMemberType]
    watch = container.watch()
    watch.connect(calls.append)
    step_s = STUCK_AFTER_CPU_S / 3  # less than what is taken for a pause of the watch's own
    for _ in range(6):
        clock.advance(step_s)
        watch.check()
        while calls:
            calls.pop(0)()
    watch.stop()
    container.telemetry().shutdown()
    container.request_log().close()
    assert engine.num_abandoned == num_abandoned
