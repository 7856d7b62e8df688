"""The engine on Metal, as far as a CPU that is dressed as it can show: limits, spare buffers, grid and chunks."""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from pathlib import Path

import mlx.core as mx
import pytest

from adapters.mlx.engine import MlxEngine
from adapters.mlx.loading import grid as grid_module
from adapters.mlx.loading.grid import find_grid
from adapters.mlx.memory import MeasuredFile
from adapters.mlx.runtime.device import MlxMemory, least_grid, spare_bytes
from adapters.system.machine import SystemMemory
from application.ports.compute import LoadedModel
from application.services.lane import Lane
from application.settings import EngineSettings, Settings
from domain.chunking import PLAIN, Chunking
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.scheduling.plan_step import next_prompt_chunk
from domain.scheduling.step_values import StepLimits
from interfaces.cli.commands.doctor import run_checks
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.dressed_metal import GIB, DressedMetal
from tests.support.mlx.tiny_models import tiny_model, write_folder
from tests.support.mlx.vision.seers import make_seer
from tests.support.stores.state_replay import BLOCK, Captured, continue_greedy, new_id, open_at, prompt_of, whole_state


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder("qwen3", tmp_path_factory.mktemp("models") / "qwen3", mx.bfloat16)


@pytest.fixture
def metal(monkeypatch: pytest.MonkeyPatch) -> DressedMetal:
    return DressedMetal(monkeypatch)


def loaded(folder: Path, memory_dir: Path | None = None, wired_bytes: int = 0) -> LoadedModel:
    engine = MlxEngine(memory_dir, wired_bytes=wired_bytes)
    return finish_load(engine.load(ModelSource(ModelId("tiny"), str(folder)), LoadOptions()))


def test_no_memory_is_wired_unless_it_is_asked_for(folder: Path, metal: DressedMetal) -> None:
    loaded(folder)
    assert metal.limits == [("set_cache_limit", 11 * GIB // 16)]


@pytest.mark.parametrize(("asked", "wired"), [(3 * GIB, 3 * GIB), (64 * GIB, 11 * GIB)])
def test_as_much_is_wired_as_is_asked_for_and_macos_allows(
    folder: Path, metal: DressedMetal, asked: int, wired: int
) -> None:
    loaded(folder, wired_bytes=asked)
    assert [size for name, size in metal.limits if name == "set_wired_limit"] == [wired]


def test_a_prompt_of_many_chunks_returns_no_buffer_to_the_system(folder: Path, metal: DressedMetal) -> None:
    model = loaded(folder)
    metal.calls.clear()
    id = open_at(model, prompt_of(40 * 32 + 1))
    assert model.position(id) == 40 * 32
    assert metal.calls["clear_cache"] == 0
    assert len(continue_greedy(model, id, prompt_of(40 * 32 + 1), 4)) == 4


def test_spare_buffers_are_not_memory_in_use(metal: DressedMetal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mx, "get_active_memory", lambda: GIB)
    monkeypatch.setattr(mx, "get_cache_memory", spare_bytes)
    reading = MlxMemory(SystemMemory()).read()
    assert reading.used_bytes == GIB
    assert reading.held_bytes == GIB + spare_bytes()


def test_doctor_says_what_is_wired_and_why(metal: DressedMetal) -> None:
    off, on = (
        [check for check in run_checks(Settings(engine=EngineSettings(wired=wired))) if check.name == "wired"]
        for wired in ("off", "8GiB")
    )
    assert [(check.found, check.problem) for check in off] == [
        ("off: wired buffers that come and go have ended macOS in panics; 704 MiB of freed buffers are kept", "")
    ]
    assert [check.found for check in on] == ["up to 8 GiB; 704 MiB of freed buffers are kept"]
    assert "engine.wired = off" in on[0].problem


def test_the_spare_of_a_large_mac_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    DressedMetal(monkeypatch, max_recommended_working_set_size=96 * GIB)
    assert spare_bytes() == 2 * GIB


@pytest.mark.parametrize(
    ("architecture", "least"),
    [
        ("applegpu_g13g", 512),
        ("applegpu_g16s", 512),
        ("applegpu_g17s", 1024),
        ("applegpu_g18d", 1024),
        ("", 512),
    ],
)
def test_from_m5_on_chunks_have_the_queries_that_its_kernel_needs(
    monkeypatch: pytest.MonkeyPatch, architecture: str, least: int
) -> None:
    DressedMetal(monkeypatch, architecture=architecture)
    assert least_grid() == least


def ticks(*times_s: float) -> Callable[[], float]:
    told: Iterator[float] = chain(times_s, repeat(times_s[-1]))
    return lambda: next(told)


def grid_by(clock: Callable[[], float], folder: Path, least: int = 512, room_bytes: int | None = None) -> int:
    lane = Lane("weights", 1)
    try:
        file = MeasuredFile(folder, lane)
        return finish_load(find_grid(tiny_model("llama"), file, "llama", least, room_bytes=room_bytes, clock=clock))
    finally:
        lane.close()


@pytest.mark.parametrize(
    ("chunk_s", "least", "grid"), [(4.0, 512, 512), (4.0, 1024, 1024), (0.5, 512, 1024), (0.2, 512, 2048)]
)
def test_the_grid_is_as_long_as_a_second_allows(tmp_path: Path, chunk_s: float, least: int, grid: int) -> None:
    length = min(512, tiny_model("llama").description.context_length // 2)
    assert grid_by(ticks(0.0, chunk_s * length / 512), tmp_path, least) == grid


def test_a_model_that_cannot_be_measured_has_the_smallest_grid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert grid_by(ticks(0.0, 0.1), tmp_path, room_bytes=1000) == 512
    monkeypatch.setattr(grid_module, "_LENGTH", 0)
    assert grid_by(ticks(0.0, 0.1), tmp_path) == 512


def test_the_grid_outlives_a_start_at_which_the_machine_is_busy(
    folder: Path, metal: DressedMetal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise what was stored under the first would be lost."""
    monkeypatch.setattr(grid_module, "_rate", partial(measured, 1500.0))
    first = loaded(folder, tmp_path).description
    assert first.chunking.grid == 1024
    monkeypatch.setattr(grid_module, "_rate", partial(measured, 20.0))
    again = loaded(folder, tmp_path).description
    assert again.chunking == again.memory.chunking == first.chunking


def measured(rate: float, *_: object) -> Generator[None, None, float]:
    yield
    return rate


@pytest.mark.parametrize(("name", "is_whole"), [("gemma3", True), ("qwen2_vl", False)])
def test_images_that_no_chunk_may_cut_are_counted_at_any_depth(
    metal: DressedMetal, tmp_path: Path, name: str, is_whole: bool
) -> None:
    described = make_seer(name, tmp_path).model.description
    assert described.chunking.most_pairs
    assert described.memory.chunking == (PLAIN if is_whole else described.chunking)


def test_nothing_of_it_changes_a_cpu(folder: Path, tmp_path: Path) -> None:
    described = loaded(folder, tmp_path).description
    assert described.chunking == described.memory.chunking == PLAIN
    assert spare_bytes() == 0


@pytest.mark.parametrize("name", ["llama", "falcon_h1"])
def test_a_state_restored_on_the_grid_has_the_bits_of_one_computed_in_ever_shorter_chunks(name: str) -> None:
    model, prompt, rule = tiny_model(name), prompt_of(12 * 64 + 1), Chunking(64, 64 * 192, least=16)
    computed, restored = new_id(), new_id()
    model.open(computed)
    assert fed(model, computed, prompt, 64 * 4, rule) == {64, 32}
    blocks = model.capture_blocks(computed, [(at, at + BLOCK) for at in range(0, 64 * 4, BLOCK)])
    kept = Captured(64 * 4, [*blocks], model.capture_snapshot(computed, 64 * 4)).on_host()
    assert fed(model, computed, prompt, 12 * 64, rule) == {32, 16}
    model.open(restored)
    model.restore(restored, kept.position, kept.blocks, kept.snapshot)
    fed(model, restored, prompt, 12 * 64, rule)
    assert whole_state(model, restored) == whole_state(model, computed)


def fed(model: LoadedModel, id: SequenceId, prompt: Sequence[int], end: int, rule: Chunking) -> set[int]:
    """Computes the prompt up to `end` as the planner does. Returns the lengths of its chunks."""
    lengths, limits = set[int](), StepLimits(1, 64, 64)
    while (start := model.position(id)) < end:
        bound = next_prompt_chunk(start, len(prompt), limits, chunking=rule)
        model.prefill(id, prompt[start:bound])
        lengths.add(bound - start)
    return lengths
