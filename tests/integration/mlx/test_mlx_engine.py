"""The MLX engine's edges: isolation of failures, memory, threads."""

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from adapters.mlx import engine as engine_module
from adapters.mlx.caches.leaves import live_arrays, new_caches
from adapters.mlx.engine import MlxEngine
from adapters.mlx.state.capture import HeldRow, copy_blocks, copy_snapshot
from adapters.mlx.state.payload import DevicePayload, pack
from application.ports.compute import DecodeStart
from domain.errors import ComputeFailed
from domain.ids import ModelId
from domain.models.load_progress import LoadPhase
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.request.sampling import SamplingParams
from tests.support.engines.finish_load import finish_load
from tests.support.frozen_tests import really_freezing
from tests.support.mlx.tiny_models import build, tiny_model, write_folder
from tests.support.stores.state_replay import continue_greedy, new_id, open_at, prompt_of

PROMPT = prompt_of(50)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("qwen3", tmp_path_factory.mktemp("models") / "qwen3", mx.bfloat16)


def test_freed_heap_goes_back_on_a_device_of_its_own_once_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "on_cpu", lambda: False)
    trimmed: list[bool] = []
    engine, model = MlxEngine(trim_heap=lambda: trimmed.append(True)), tiny_model("llama")
    engine._models.append(model)
    id = open_at(model, PROMPT)
    engine.clear_cache()
    assert not trimmed, "a step of another sequence would wait for it"
    model.close([id])
    engine.clear_cache()
    assert trimmed == [True]


# ---- failures ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [-1, 256, 2**31])
def test_tokens_outside_the_vocabulary_never_reach_the_device(token: int) -> None:
    model = tiny_model("llama")
    id, other = new_id(), new_id()
    for one in (id, other):
        model.open(one)
    with pytest.raises(ComputeFailed, match="token ids must be in"):
        model.prefill(id, [1, token, 2])
    with pytest.raises(ComputeFailed, match="token ids must be in"):
        model.start_decode(other, [token], DecodeStart((token,), SamplingParams(temperature=0), seed=1))
    assert not model.open_ids()


# ---- memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "deepseek_v3", "gemma3_text", "mamba", "falcon_h1", "lfm2"])
def test_captures_share_no_memory_with_the_cache(name: str) -> None:
    """A view would be copied whole by every later update, and keep a buffer many times its size alive."""
    network = build(name)
    caches = new_caches(network)
    layout = tiny_model(name).description.layout
    mx.eval(network(mx.array([PROMPT]), cache=caches), live_arrays(caches))
    held = HeldRow(caches, 0, len(PROMPT))
    captured = [*copy_blocks(layout, held, [(0, 32), (0, 50)]), copy_snapshot(layout, held, 0)]
    live = [_extent(array) for array in live_arrays(caches)]
    for payloads in captured:
        for payload in payloads.values():
            assert isinstance(payload, DevicePayload)
            for packed in payload.packs:
                start, end = _extent(packed)
                assert all(end <= other_start or other_end <= start for other_start, other_end in live)
                if hasattr(mx, "get_array_buffer_size"):
                    assert mx.get_array_buffer_size(packed) <= packed.nbytes + 2 * 16_384


def test_a_lone_tensor_is_copied_too() -> None:
    whole = mx.random.normal((1, 1, 64, 8))
    for tensor in (whole, whole[:, :, :50]):
        payload = pack([tensor])
        mx.eval(whole, *payload.packs)
        start, end = _extent(payload.packs[0])
        other_start, other_end = _extent(whole)
        assert end <= other_start or other_end <= start


def _extent(array: mx.array) -> tuple[int, int]:
    start = np.asarray(memoryview(array)).__array_interface__["data"][0] if array.size else 0
    return start, start + array.nbytes


def test_each_phase_of_a_load_is_reported_up_to_its_whole_amount(folder: Path, tmp_path: Path) -> None:
    told: dict[tuple[LoadPhase, int], list[int]] = {}

    def report(phase: LoadPhase, done: int, total: int) -> None:
        told.setdefault((phase, total), []).append(done)

    engine, source = MlxEngine(tmp_path), ModelSource(ModelId("tiny"), str(folder))
    model = finish_load(engine.load(source, LoadOptions(room_bytes=1 << 24), report))
    num_bytes = sum(path.stat().st_size for path in (folder / "config.json", folder / "model.safetensors"))
    reading = LoadPhase.READING, model.description.weight_bytes
    assert list(told) == [
        (LoadPhase.HASHING, num_bytes),
        (LoadPhase.LOADING, 0),
        reading,
        (LoadPhase.MEASURING, 0),
        (LoadPhase.MEASURING, 2),
    ]
    assert told[LoadPhase.HASHING, num_bytes][-1] == num_bytes
    assert told[reading] == [0, model.description.weight_bytes]
    assert told[LoadPhase.MEASURING, 2] == [0, 1]
    engine.unload(model)


class Knot:
    """Refers to itself, so that only a collection frees it."""

    def __init__(self) -> None:
        self.me = self


def test_objects_that_a_load_left_out_of_collections_are_collected_at_an_unload(folder: Path) -> None:
    engine = MlxEngine()
    pieces = engine.load(ModelSource(ModelId("tiny"), str(folder)), LoadOptions())
    next(pieces)
    knot = Knot()
    with really_freezing():
        model = finish_load(pieces)
        left = weakref.ref(knot)
        del knot
        gc.collect()
        assert left() is not None
        engine.unload(model)
        assert left() is None


# ---- threads and the process ---------------------------------------------------------------------------------------


def test_an_engine_lives_and_ends_on_its_own_thread(folder: Path) -> None:
    descriptions: list[ModelDescription] = []

    def run() -> None:
        engine = MlxEngine()
        model = finish_load(engine.load(ModelSource(ModelId("tiny"), str(folder)), LoadOptions()))
        continue_greedy(model, open_at(model, PROMPT), PROMPT, 4)
        descriptions.append(model.description)
        engine.unload(model)
        engine.close()

    for _ in range(2):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert len(descriptions) == 2
    assert descriptions[0] == descriptions[1]


LIMITS = """
import resource, sys
soft, hard = {limits}
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
import adapters.mlx.engine, mlx_lm
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("limits", ["256, 3000", "1024, 20000"])
def test_importing_mlx_lm_leaves_the_file_limit_alone(limits: str) -> None:
    """Also where the hard limit is below what mlx-lm insists on."""
    root = str(Path(__file__).parents[3])
    code = LIMITS.format(limits=limits)
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout.split() == limits.split(", ")
