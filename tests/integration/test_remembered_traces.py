"""A network is traced once in the life of a directory, until something changes that a trace depends on.

`forget` makes of this process a new one, as far as traces go.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from adapters.mlx import memory_shape, step_trace
from adapters.mlx.caches.layout import layout_of, new_caches
from adapters.mlx.engine import MlxEngine
from adapters.mlx.graph_trace import trace_chunk
from adapters.mlx.memory_shape import shape_of_network
from adapters.mlx.planned_network import network_of, plan_model
from adapters.mlx.trace_memory import TraceMemory
from application.services.token_side.model_loads import whole
from domain.ids import ModelId
from domain.memory.op_trace import OpTrace, RunAhead
from domain.memory.shape import MemoryShape
from domain.model_card import LoadOptions, ModelSource
from tests.support import tiny_models
from tests.support.lanes import InlineLane


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The chunk and the end of each trace from here on."""
    found: list[tuple[int, int]] = []

    def seen(network: Any, layout: Any, pattern: Any, chunk: int, end: int) -> OpTrace:
        found.append((chunk, end))
        return trace_chunk(network, layout, pattern, chunk, end)

    monkeypatch.setattr(step_trace, "trace_chunk", seen)
    return found


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch, traced: list[tuple[int, int]]) -> Callable[[], None]:
    def forget() -> None:
        monkeypatch.setattr(memory_shape, "_traced_steps", {})
        traced.clear()

    forget()
    return forget


def test_the_next_start_does_not_trace(tmp_path: Path, traced: list[tuple[int, int]], forget: Callable[[], None]):
    source = ModelSource(ModelId("m"), str(tiny_models.write_folder("qwen3", tmp_path / "model")))

    def loaded(memory_dir: Path | None) -> MemoryShape:
        engine = MlxEngine(memory_dir)
        model = whole(engine.load(source, LoadOptions()))
        engine.unload(model)
        return model.description.memory

    first, num_traced = loaded(tmp_path / "memory"), len(traced)
    assert num_traced > 0
    forget()
    assert loaded(tmp_path / "memory") == first
    assert not traced
    forget()
    assert plan_model(source, LoadOptions(), tmp_path / "memory").memory == first
    assert not traced
    forget()
    assert loaded(None) == first
    assert len(traced) == num_traced
    forget()
    assert plan_model(source, LoadOptions(), tmp_path / "planned").memory == first
    assert len(traced) == num_traced
    forget()
    assert loaded(tmp_path / "planned") == first
    assert not traced


def test_what_a_trace_depends_on_has_it_traced_anew(
    tmp_path: Path, traced: list[tuple[int, int]], forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    config = tiny_models.config_of("qwen3")
    network = network_of(config, "float32")
    layout = layout_of(new_caches(network))

    def is_traced(context_length: int = 1024, code: str = "code") -> bool:
        """By this start; the next one has the same figures without."""
        shapes, num_traced = list[MemoryShape](), list[int]()
        for _ in range(2):
            forget()
            traces = TraceMemory(tmp_path, InlineLane(), lambda: code)
            shapes.append(whole(shape_of_network(network, layout, config, context_length, traces)))
            num_traced.append(len(traced))
        assert shapes[0] == shapes[1]
        assert num_traced[1] == 0
        return num_traced[0] > 0

    assert is_traced()
    assert not is_traced()
    assert is_traced(context_length=512)
    assert is_traced(code="newer")
    monkeypatch.setattr(memory_shape, "run_ahead", lambda: RunAhead(50, 1 << 20))
    assert is_traced()
    monkeypatch.setattr(memory_shape, "most_ahead_bytes", lambda: 1 << 12)
    assert is_traced(), "and its bound comes back with it"
    monkeypatch.setattr(memory_shape, "preferred_grid", lambda: 64)
    assert is_traced()
    monkeypatch.setattr(memory_shape, "on_cpu", lambda: False)
    assert is_traced()
    assert not is_traced()


def test_what_cannot_be_traced_is_tried_again(
    tmp_path: Path, traced: list[tuple[int, int]], forget: Callable[[], None], monkeypatch: pytest.MonkeyPatch
):
    config = tiny_models.config_of("qwen3")
    network = network_of(config, "float32")
    layout, traces = layout_of(new_caches(network)), TraceMemory(tmp_path, InlineLane(), lambda: "code")

    def refused(*_: object) -> OpTrace:
        raise ValueError("no graph of it")

    with monkeypatch.context() as patched:
        patched.setattr(step_trace, "trace_chunk", refused)
        by_config = whole(shape_of_network(network, layout, config, 1024, traces))
    assert not list(tmp_path.iterdir())
    assert whole(shape_of_network(network, layout, config, 1024, traces)) != by_config
    assert traced
