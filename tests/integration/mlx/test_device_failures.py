"""A pass that fails on the device, by MLX's CPU stream, which keeps the error of a pass as Metal's does.

The next wait on the same stream raises it, and only once: no work may continue after that.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx_lm.models import llama

from adapters.engine_process.engine import EngineProcess
from adapters.mlx.caches.leaves import Caches, leaves
from adapters.mlx.engine import MlxEngine
from adapters.mlx.loaded_network import LoadedNetwork
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.arrays import evaluate, finish, trial
from adapters.mlx.runtime.device import on_cpu
from adapters.system.clock import SystemClock
from application.events import EngineRestarted
from application.ports.compute import DecodeStart, DeviceFailed, Draft
from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.errors import DomainError, ModelLoadFailed
from domain.ids import ModelId
from domain.models.capability import Pooling
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.sampling import SamplingParams
from interfaces.composition.token_side import host_token_side
from tests.support.effort import scaled
from tests.support.engines.engine_client import EngineClient
from tests.support.engines.finish_load import finish_load
from tests.support.engines.process.all_streams import check_same, play
from tests.support.mlx.tiny_models import build, config_of, write_folder
from tests.support.processes.hosted_child import HostedChild
from tests.support.stores.state_replay import continue_greedy, new_id, open_at, prompt_of, start_greedy

pytestmark = pytest.mark.skipif(not on_cpu(), reason="behind a GPU's pass the CPU's error is raised at once")

WORDS = "LU factorization failed"


def failing(logits: mx.array, caches: Caches) -> mx.array:
    """The logits of a pass that fails when it is computed; the state that it leaves depends on it as well."""
    bad = mx.linalg.inv(0 * logits.reshape(-1)[:4].reshape(2, 2).astype(mx.float32), stream=mx.cpu)[0, 0]
    for leaf in leaves(caches):
        leaf.keys = leaf.keys + bad.astype(leaf.keys.dtype)
    return logits + bad.astype(logits.dtype)


class FailingPass:
    """A network of which one pass fails: the next one once `is_armed`."""

    def __init__(self, network: Any) -> None:
        self._network = network
        self.is_armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __contains__(self, name: str) -> bool:
        return name in self._network

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        logits = self._network(tokens, cache=cache)
        if not self.is_armed:
            return logits
        self.is_armed = False
        return failing(logits, cache)


class Bench:
    """A model of which two sequences decode and one has begun to prefill."""

    def __init__(self) -> None:
        self.network = FailingPass(build("llama"))
        self.model: MlxModel = finish_load(assemble(self.network, ModelId("tiny"), ModelFacts(config_of("llama"))))
        self.prompts = [prompt_of(40 + index, index) for index in range(3)]
        self.expected = [continue_greedy(self.model, open_at(self.model, one), one, 12) for one in self.prompts]
        self.ids = [open_at(self.model, prompt) for prompt in self.prompts[:2]]
        for id, prompt in zip(self.ids, self.prompts, strict=False):
            start_greedy(self.model, id, prompt)
        for step in range(3):
            self.decode(step)
        self.other = new_id()
        self.model.open(self.other)

    def decode(self, step: int) -> None:
        for result, expected in zip(self.model.decode(self.ids), self.expected, strict=False):
            assert (result.error, result.token_ids) == (None, (expected[step],))

    def fail_the_pass_ahead(self) -> None:
        """The step delivers what was computed before; the pass that it queues fails."""
        self.network.is_armed = True
        self.decode(3)

    def start_other(self) -> None:
        prompt = self.prompts[2]
        self.model.start_decode(self.other, prompt, DecodeStart(prompt, SamplingParams(temperature=0), seed=1))


MEETINGS: dict[str, Callable[[Bench], object]] = {
    "its own next step": lambda bench: bench.decode(4),
    "a prompt's chunk": lambda bench: bench.model.prefill(bench.other, bench.prompts[2][:30]),
    "the end of a prompt": lambda bench: bench.start_other(),
    "a first token": lambda bench: (bench.start_other(), bench.model.decode([bench.other])),
    "scores of a prompt": lambda bench: bench.model.prefill(bench.other, [5, 6, 7], num_prompt_logprobs=1),
    "a capture of blocks": lambda bench: bench.model.capture_blocks(bench.ids[0], [(0, 16)]),
    "a snapshot": lambda bench: bench.model.capture_snapshot(bench.ids[1], 32),
    "a vector": lambda bench: bench.model.pool(bench.other, [[3, 4, 5]], Pooling()),
    "a row that leaves": lambda bench: bench.model.decode(bench.ids[:1]),
    "a measured chunk": lambda bench: bench.model.measured_prefill(bench.other, bench.prompts[2][:30]),
    "a cache that is cleared": lambda bench: bench.model.close(bench.model.open_ids()),
    "a wait": lambda _bench: finish(),
}


def on_a_thread(work: Callable[[], object]) -> None:
    """As an engine computes: MLX checks its streams more often on the main thread. Raises what `work` raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            raised.append(error)
        with suppress(DeviceFailed):
            finish()
        mx.clear_streams()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("meeting", MEETINGS)
def test_whoever_meets_a_failed_pass_contains_nothing(meeting: str) -> None:

    def meet() -> None:
        bench = Bench()
        bench.fail_the_pass_ahead()
        with pytest.raises(DeviceFailed, match=WORDS):
            MEETINGS[meeting](bench)

    on_a_thread(meet)


WAITING: dict[str, Callable[[Bench], object]] = {
    "a chunk": lambda bench: bench.model.prefill(bench.other, bench.prompts[2][:30]),
    "the end of a prompt": lambda bench: bench.start_other(),
    "a verified draft": lambda bench: bench.model.decode(
        bench.ids, {id: Draft(tuple(answer[3:6])) for id, answer in zip(bench.ids, bench.expected, strict=False)}
    ),
}


@pytest.mark.parametrize("name", WAITING)
def test_a_pass_that_waits_for_itself_ends_in_nothing(name: str) -> None:
    def wait() -> None:
        bench = Bench()
        bench.network.is_armed = True
        with pytest.raises(DeviceFailed, match=WORDS):
            WAITING[name](bench)

    on_a_thread(wait)


def test_a_wrong_request_is_still_its_own_failure() -> None:
    """What building a pass raises is not the device's."""

    def run() -> None:
        bench = Bench()
        with pytest.raises(DomainError, match="token ids must be in"):
            bench.model.prefill(bench.other, [10**6])
        bench.decode(3)

    on_a_thread(run)


# ---- loads -----------------------------------------------------------------------------------------------------------


def test_a_model_that_the_device_cannot_compute_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        bench, engine = Bench(), MlxEngine()
        with monkeypatch.context() as patch:
            plain: Any = llama.Model.__call__
            patch.setattr(llama.Model, "__call__", lambda *given, cache: failing(plain(*given, cache=cache), cache))
            with pytest.raises(ModelLoadFailed, match=WORDS):
                finish_load(engine.load(source, LoadOptions()))
        bench.decode(3)

    source = ModelSource(ModelId("uncomputable"), str(write_folder("llama", tmp_path / "uncomputable")))
    on_a_thread(load)


def test_a_load_beside_a_pass_that_fails_is_not_taken_for_the_cause(tmp_path: Path) -> None:
    def load() -> None:
        bench, engine = Bench(), MlxEngine()
        bench.fail_the_pass_ahead()
        with pytest.raises(DeviceFailed, match=WORDS):
            finish_load(engine.load(source, LoadOptions()))

    source = ModelSource(ModelId("sound"), str(write_folder("llama", tmp_path / "sound")))
    on_a_thread(load)


def test_a_trial_that_failed_inside_another_ends_alone() -> None:
    def nested() -> None:
        with trial():
            with pytest.raises(RuntimeError, match=WORDS), trial():
                evaluate([failing(mx.zeros(4), [])])
            with pytest.raises(RuntimeError, match=WORDS):
                evaluate([failing(mx.zeros(4), [])])
        with pytest.raises(DeviceFailed, match=WORDS):
            evaluate([failing(mx.zeros(4), [])])

    on_a_thread(nested)


# ---- the whole engine ------------------------------------------------------------------------------------------------


def test_all_streams_go_on_with_the_same_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine before the failure stored is used by the ones after it."""
    folder = write_folder("llama", tmp_path / "tiny")
    settings = Settings(
        model=ModelSettings(default=str(folder)),
        engine=EngineSettings(block_size=16, prefill_grid=32, memory=ByteSize(num_bytes=1 << 30)),
        store=StoreSettings(dir=str(tmp_path / "store"), quota=ByteSize(num_bytes=64 << 20)),
    )
    tiny = ModelSource(ModelId(str(folder)), str(folder))
    num_passes, failing_pass, plain = 0, -1, cast(Any, LoadedNetwork.forward)

    def forward(self: LoadedNetwork, tokens: mx.array, caches: Caches, embeddings: mx.array | None = None) -> mx.array:
        nonlocal num_passes
        num_passes += 1
        logits = plain(self, tokens, caches, embeddings)
        return failing(logits, caches) if num_passes == failing_pass else logits

    def played(salt: str) -> EngineClient:
        def make(lost: Callable[[str], None]) -> EngineProcess:
            return EngineProcess(
                HostedChild(lambda _, hold: host_token_side(settings, hold)), b"", SystemClock(), lost=lost
            )

        return play(make, model=tiny, salt=salt)

    monkeypatch.setattr(LoadedNetwork, "forward", forward)
    calm = played("calm")
    num_calm = num_passes
    for number in range(scaled(3)):
        num_passes, failing_pass = 0, num_calm // 3 + (29 * number) % (num_calm // 2)
        disturbed = played(f"salt {number}")
        check_same(disturbed, calm)
        (restarted,) = [event for event in disturbed.events if isinstance(event, EngineRestarted)]
        assert WORDS in restarted.why
        failing_pass = -1
        check_same(played(f"salt {number}"), calm)
