"""Settings that change while a server runs reach the engine's process."""

import asyncio
import queue
from collections.abc import Callable
from dataclasses import replace

from adapters.engine_process.host import Hosted
from adapters.fake.environment import FakeClock
from application.live_settings import LiveSettings
from application.settings import ServerSettings, Settings
from interfaces.composition.engine_process import build_engine_process, decode_settings
from tests.support.engines.engine_client import hosted_toy
from tests.support.patience import PATIENCE_S
from tests.support.processes.hosted_child import HostedChild


def test_the_process_is_told_of_a_change() -> None:
    levels: queue.Queue[str] = queue.Queue()

    def take(settings: bytes) -> None:
        levels.put(decode_settings(settings).server.log_level)

    def make(settings: bytes, hold: Callable[[], None]) -> Hosted:
        take(settings)
        return replace(hosted_toy(settings, hold), adjust=take)

    async def run() -> None:
        live = LiveSettings(Settings())
        engine = build_engine_process(live, FakeClock(), HostedChild(make), lambda _why: None)  # type: ignore[arg-type]
        engine.start(lambda _batch: None)
        try:
            assert await asyncio.to_thread(levels.get, timeout=PATIENCE_S) == "info"
            live.take(Settings(server=ServerSettings(log_level="debug")), {}, ["server.log_level"])
            assert await asyncio.to_thread(levels.get, timeout=PATIENCE_S) == "debug"
        finally:
            assert await engine.stop(PATIENCE_S)

    asyncio.run(run())
