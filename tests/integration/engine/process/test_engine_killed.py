"""A real engine process that is killed: everybody who was open gets the same answer, a moment later."""

import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from adapters.engine_process.child import FOREIGN_KILL, ChildProcess
from adapters.engine_process.engine import EngineProcess
from adapters.engine_process.host import MakeEngine
from adapters.system.clock import SystemClock
from application.events import EngineRestarted
from application.ports.engine import MakeInstance, Tokens
from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.errors import ModelLoadFailed
from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from interfaces.composition.engine_entry import engine_child
from interfaces.composition.engine_process import encode_settings
from interfaces.composition.token_side import host_token_side
from tests.support.effort import scaled
from tests.support.engines.engine_client import DEADLY, EngineClient, hosted_toy, source
from tests.support.engines.process.all_streams import NUM_CHOICES, check_same, play
from tests.support.http.servers.fake_service import wait_until
from tests.support.mlx.tiny_models import write_folder
from tests.support.processes.hosted_child import HostedChild

NEW_CHILD = partial(ChildProcess, "tests.support.engines.process.engine_child")


class Processes:
    """Makes engines in processes, and remembers them."""

    def __init__(self, child: Callable[[], ChildProcess], settings: bytes = b"") -> None:
        self._child = child
        self._settings = settings
        self.made: list[EngineProcess] = []

    def make(self, lost: Callable[[str], None]) -> EngineProcess:
        engine = EngineProcess(self._child(), self._settings, SystemClock(), lost=lost)
        self.made.append(engine)
        return engine

    def killing(self, draw: Random, most: int) -> Callable[[EngineClient], Awaitable[None]]:
        """Kill the first one after some of the tokens were sent."""

        async def kill(client: EngineClient) -> None:
            wanted = draw.randrange(most)
            await client.until(lambda: num_tokens(client) >= wanted, "some tokens")
            os.kill(self.made[0].pid or 0, signal.SIGKILL)
            await client.until(lambda: restarts(client), "another engine")  # also where all had ended by then

        return kill

    def check_gone(self) -> None:
        for engine in self.made:
            with pytest.raises(ProcessLookupError):
                os.kill(engine.pid or 0, 0)


def here(make: MakeEngine) -> MakeInstance:
    """Engines that nothing happens to, in this process."""
    return lambda lost: EngineProcess(HostedChild(make), b"", SystemClock(), lost=lost)


def num_tokens(client: EngineClient) -> int:
    return sum(isinstance(item, Tokens) for batch in client.batches for *_, item in batch.items)


@pytest.fixture(scope="module")
def calm() -> EngineClient:
    """The streams of an engine that is not lost."""
    return play(here(hosted_toy))


def restarts(client: EngineClient) -> list[EngineRestarted]:
    return [event for event in client.events if isinstance(event, EngineRestarted)]


def num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


def test_killed_at_any_moment_all_streams_end_as_undisturbed_ones(calm: EngineClient) -> None:
    num_before = num_descriptors()
    for seed in range(scaled(1)):
        processes = Processes(NEW_CHILD)
        disturbed = play(processes.make, processes.killing(Random(seed), 100))
        check_same(disturbed, calm)
        (restarted,) = restarts(disturbed)
        assert restarted.why == f"the engine's process was killed by SIGKILL{FOREIGN_KILL}"
        assert restarted.num_resumed <= sum(NUM_CHOICES.values())
        processes.check_gone()
    wait_until(lambda: num_descriptors() <= num_before, "all descriptors to be given back")


def test_a_load_that_is_killed_fails_alone_and_is_not_tried_again(calm: EngineClient) -> None:
    processes = Processes(NEW_CHILD)

    async def load_twice(client: EngineClient) -> None:
        await client.until(lambda: num_tokens(client) >= 3, "some tokens")
        for _ in range(2):
            with pytest.raises(ModelLoadFailed, match=r"loading deadly ended the engine: .* killed by SIGKILL"):
                await client.engine.load(source(DEADLY), LoadOptions())
        await client.until(lambda: restarts(client), "another engine")

    check_same(play(processes.make, load_twice), calm)
    assert len(processes.made) == 2
    processes.check_gone()


@pytest.mark.slow
@pytest.mark.exact
def test_a_model_on_mlx_is_loaded_again_and_goes_on(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "tiny")
    settings = Settings(
        model=ModelSettings(default=str(folder)),
        engine=EngineSettings(block_size=16, prefill_grid=32, memory=ByteSize(num_bytes=1 << 30)),
        store=StoreSettings(dir=str(tmp_path / "store"), quota=ByteSize(num_bytes=64 << 20)),
    )
    tiny = ModelSource(ModelId(str(folder)), str(folder))
    unstored = replace(settings, store=StoreSettings(kind="off"))
    calm = play(here(lambda _, hold: host_token_side(unstored, hold)), model=tiny)
    processes = Processes(partial(engine_child, "mlx"), encode_settings(settings))
    disturbed = play(processes.make, processes.killing(Random(7), 60), model=tiny)
    check_same(disturbed, calm)
    assert len(restarts(disturbed)) == 1
    processes.check_gone()
