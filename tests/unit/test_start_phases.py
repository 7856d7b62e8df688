"""The line of the log that says what a start of the engine's process took."""

import asyncio
from itertools import accumulate

from application.settings import EngineSettings, Settings, StoreSettings
from interfaces.composition.start_phases import StartPhases
from interfaces.composition.token_side import host_token_side
from tests.support.patience import PATIENCE_S


def test_a_start_tells_what_each_phase_took() -> None:
    times = accumulate([100.0, 7.1, 2.0, 0.24])
    phases = StartPhases(lambda: next(times))
    for phase in ("imports", "device", "store"):
        phases.end(phase)
    assert str(phases) == "9.3s (imports 7.1s, device 2.0s, store 0.2s)"


def test_the_token_side_tells_what_it_was_made_of() -> None:
    phases = StartPhases()
    settings = Settings(engine=EngineSettings(backend="fake"), store=StoreSettings(kind="off"))
    hosted = host_token_side(settings, lambda: None, phases)
    asyncio.run(hosted.engine.stop(PATIENCE_S))
    assert [part.split()[0] for part in str(phases).partition("(")[2].split(", ")] == ["device", "store", "cache"]
