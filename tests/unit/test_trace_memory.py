"""What traces found, from one start to the next: the file, and what makes an entry another's."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from adapters.mlx.step_trace import DeviceLimits, Traced
from adapters.mlx.trace_key import code_key, trace_key
from adapters.mlx.trace_memory import TraceMemory
from application.services.lane import Lane
from application.services.token_side.model_loads import whole
from domain.memory.op_trace import RunAhead
from domain.memory.shape import AheadBound, StepCost
from domain.state_layout import LayerState, StateKind, StateLayout
from tests.support.lanes import HeldLane, InlineLane

STEP = StepCost(base_bytes=1, token_bytes=2, seen_bytes=3, pair_bytes=4, most_bytes=5, most_chunk=6, most_end=7)
FREE: Traced = (STEP, None)
HELD: Traced = (STEP, AheadBound(replace(STEP, base_bytes=8), 9))
TOLD_STEP = [1, 2, 3, 4, 5, 6, 7]
LIMITS = DeviceLimits("cpu", True, 512, RunAhead(5, 1 << 60), None)
LAYOUT = StateLayout((LayerState(StateKind.SLICED, "KVCache"),))
CONFIG = {"model_type": "llama", "rope": {"theta": float("inf")}}


def memory(folder: Path, code: Callable[[], str] = lambda: "code") -> TraceMemory:
    return TraceMemory(folder, InlineLane(), code)


def recalled(folder: Path, key: str = "a", code: Callable[[], str] = lambda: "code") -> Traced | None:
    return whole(memory(folder, code).recall(key))


def test_what_was_traced_is_there_for_the_next_start(tmp_path: Path):
    folder = tmp_path / "new"
    assert recalled(folder) is None
    memory(folder).remember("a", FREE)
    memory(folder).remember("b", HELD)
    assert (recalled(folder, "a"), recalled(folder, "b"), recalled(folder, "c")) == (FREE, HELD, None)
    told = json.loads((folder / "memory-traces.json").read_text())
    assert told == {"a code": [TOLD_STEP, None], "b code": [TOLD_STEP, [[8, *TOLD_STEP[1:]], 9]]}


def test_other_code_traces_anew_and_takes_nothing_from_who_has_the_first(tmp_path: Path):
    memory(tmp_path).remember("a", FREE)
    assert recalled(tmp_path, code=lambda: "newer") is None
    memory(tmp_path, lambda: "newer").remember("a", HELD)
    assert (recalled(tmp_path), recalled(tmp_path, code=lambda: "newer")) == (FREE, HELD)


def test_code_that_cannot_be_read_remembers_nothing(tmp_path: Path):
    def unread() -> str:
        raise FileNotFoundError

    memory(tmp_path, unread).remember("a", FREE)
    assert recalled(tmp_path, code=unread) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "entry",
    [
        "1",
        '"text"',
        "{}",
        "[]",
        "[null, null]",
        "[[1, 2, 3, 4, 5, 6, 7]]",
        "[[1, 2, 3, 4, 5, 6, 7], null, null]",
        "[[1, 2, 3, 4, 5, 6], null]",
        "[[1, 2, 3, 4, 5, 6, 7, 8], null]",
        "[[1, 2, 3, 4, 5, 6, -7], null]",
        "[[-1, 2, 3, 4, 5, 6, 7], null]",
        "[[1.0, 2, 3, 4, 5, 6, 7], null]",
        "[[NaN, 2, 3, 4, 5, 6, 7], null]",
        "[[Infinity, 2, 3, 4, 5, 6, 7], null]",
        "[[true, 2, 3, 4, 5, 6, 7], null]",
        '[["1", 2, 3, 4, 5, 6, 7], null]',
        "[[[1], 2, 3, 4, 5, 6, 7], null]",
        "[[1152921504606846977, 2, 3, 4, 5, 6, 7], null]",
        "[[1, 2, 3, 4, 0, 6, 7], null]",
        "[[0, 0, 0, 0, 0, 0, 0], null]",
        '["1234567", null]',
        "[[1, 2, 3, 4, 5, 6, 7], false]",
        "[[1, 2, 3, 4, 5, 6, 7], 9]",
        "[[1, 2, 3, 4, 5, 6, 7], []]",
        "[[1, 2, 3, 4, 5, 6, 7], [null, 9]]",
        "[[1, 2, 3, 4, 5, 6, 7], [[1, 2, 3, 4, 5, 6, 7], null]]",
        "[[1, 2, 3, 4, 5, 6, 7], [[1, 2, 3, 4, 5, 6, 7], -9]]",
        "[[1, 2, 3, 4, 5, 6, 7], [[1, 2, 3, 4, 5, 6, 7], NaN]]",
        "[[1, 2, 3, 4, 5, 6, 7], [[1, 2, 3, 4, 5, 6, 7], 9, 9]]",
        "[null, [[1, 2, 3, 4, 5, 6, 7], 9]]",
        "1" * 5000,
        "[" * 100_000,
    ],
)
def test_what_is_not_to_be_believed_is_traced_anew(tmp_path: Path, entry: str):
    kept = tmp_path / "memory-traces.json"
    kept.write_text(f'{{"a code": {entry}}}')
    assert recalled(tmp_path) is None
    memory(tmp_path).remember("b", FREE)
    assert json.loads(kept.read_text()) == {"b code": [TOLD_STEP, None]}


@pytest.mark.parametrize("content", [b"", b"[]", b"null", b'{"a code": [[1, 2, 3', b"\xff\xfe", bytes(4096)])
def test_a_damaged_file_is_written_anew(tmp_path: Path, content: bytes):
    (tmp_path / "memory-traces.json").write_bytes(content)
    assert recalled(tmp_path) is None
    memory(tmp_path).remember("a", HELD)
    assert recalled(tmp_path) == HELD


def test_only_so_many_are_kept_the_latest_of_all(tmp_path: Path):
    known = {f"{index} code": [TOLD_STEP, None] for index in range(300)}
    (tmp_path / "memory-traces.json").write_text(json.dumps(known))
    memory(tmp_path).remember("0", HELD)
    told = json.loads((tmp_path / "memory-traces.json").read_text())
    assert list(told) == [*list(known)[-255:], "0 code"]


def test_what_cannot_be_written_is_no_error(tmp_path: Path):
    (tmp_path / "memory-traces.json").mkdir()
    memory(tmp_path).remember("a", FREE)
    assert recalled(tmp_path) is None
    assert [path.name for path in tmp_path.iterdir()] == ["memory-traces.json"]


def test_a_disk_is_never_waited_for_by_who_computes_and_may_be_gone(tmp_path: Path):
    lane = HeldLane()
    traces = TraceMemory(tmp_path, lane, lambda: "code")
    traces.remember("a", FREE)
    assert not list(tmp_path.iterdir())
    pieces = traces.recall("a")
    awaited = next(pieces)
    assert awaited is not None
    assert not awaited.done(), "or nobody could step meanwhile"
    assert lane.run() == 2
    with pytest.raises(StopIteration) as end:
        next(pieces)
    assert end.value.value == FREE
    closed = Lane("closed", 1)
    closed.close()
    TraceMemory(tmp_path, closed).remember("b", FREE)


def network(**shapes: tuple[int, ...]) -> Any:
    module = nn.Module()
    for name, shape in shapes.items():
        module[name] = mx.zeros(shape)
    return module


def test_whatever_a_trace_depends_on_is_in_its_key():
    def key(weights: Any = None, **changes: Any) -> str:
        given = {"layout": LAYOUT, "config": CONFIG, "context_length": 4096, "limits": LIMITS, **changes}
        return trace_key(network(a=(8, 4), b=(2,)) if weights is None else weights, **given)

    cast = network(a=(8, 4), b=(2,))
    cast.a = cast.a.astype(mx.bfloat16)
    others = [
        key(network(a=(4, 8), b=(2,))),  # an adapter of the same size, laid elsewhere
        key(network(a=(8, 4), c=(2,))),
        key(cast),
        key(layout=StateLayout((LayerState(StateKind.WINDOWED, "KVCache", 512),))),
        key(config={**CONFIG, "model_type": "qwen3"}),
        key(context_length=8192),
        key(limits=replace(LIMITS, name="another")),
        key(limits=replace(LIMITS, is_cpu=False)),
        key(limits=replace(LIMITS, grid=2048)),
        key(limits=replace(LIMITS, ahead=RunAhead(6, 1 << 60))),
        key(limits=replace(LIMITS, ahead=RunAhead(5, 1 << 20))),
        key(limits=replace(LIMITS, most_ahead_bytes=2 << 30)),
    ]
    assert len({key(), *others}) == 1 + len(others)
    assert key() == key(config=dict(reversed(CONFIG.items())))


def test_the_code_is_told_by_what_it_says(monkeypatch: pytest.MonkeyPatch):
    first = code_key.__wrapped__()
    assert first == code_key.__wrapped__()
    monkeypatch.setenv("MLX_MAX_OPS_PER_BUFFER", "7")
    by_variable = code_key.__wrapped__()
    monkeypatch.setattr("adapters.mlx.trace_key._version", lambda package: f"{package} 99")
    by_version = code_key.__wrapped__()
    monkeypatch.setattr(Path, "read_bytes", lambda path: b"another line")
    assert len({first, by_variable, by_version, code_key.__wrapped__()}) == 4
    monkeypatch.setattr(Path, "rglob", lambda path, pattern: iter(()))
    with pytest.raises(OSError, match="has no sources"):
        code_key.__wrapped__()
