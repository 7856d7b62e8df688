"""What a forward pass would compute, as a trace of operations: nothing is computed for it, and no memory is taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.arrays import parameters
from adapters.mlx.caches.classes import known_traits
from adapters.mlx.caches.layout import Caches, leaf_at, live_arrays, new_caches, shed_chunk
from adapters.mlx.caches.leaf_state import fill, trailing_reach
from adapters.mlx.caches.short_queries import noting
from domain.memory.op_trace import Op, OpTrace
from domain.state_layout import StateKind, StateLayout

_mx: Any = mx

_KEEPS_ORDER = frozenset({"ExpandDims", "Squeeze", "Slice", "Broadcast"})
_NEEDS_ORDER = frozenset({"Reshape", "Flatten"})
"""Views of an array whose elements lie in order, copies of one whose axes were turned."""


def trace_chunk(network: Any, layout: StateLayout, pattern: Caches, chunk: int, end: int) -> OpTrace:
    """Prefill of `chunk` tokens up to position `end`. `pattern`: caches of a sequence of any length, for shapes."""
    weights = parameters(network)
    states = _states(layout, pattern, end - chunk)
    flat = [tensor for tensors in states for tensor in tensors if tensor is not None]
    records: list[dict[str, Any]] = []

    def compute(tokens: mx.array, *rest: mx.array) -> list[mx.array]:
        network.update(tree_unflatten([(name, array) for (name, _), array in zip(weights, rest, strict=False)]))
        supply = iter(rest[len(weights) :])
        caches = new_caches(network)
        for (path, _), tensors in zip(layout.leaves(), states, strict=True):
            if tensors and end > chunk:
                given = tuple(None if tensor is None else next(supply) for tensor in tensors)
                fill(leaf_at(caches, path), given, end - chunk)
        with noting():  # the chunk may stand for another: its scores are charged by themselves
            network(tokens, cache=caches)
        shed_chunk(caches)
        return live_arrays(caches)

    contiguous = _mx.contiguous
    try:
        _mx.contiguous = _copied
        _mx.export_function(
            records.append, compute, mx.zeros((1, chunk), dtype=mx.uint32), *(array for _, array in weights), *flat
        )
    finally:
        _mx.contiguous = contiguous
        network.update(tree_unflatten(weights))
    return _read(records, len(weights))


def _copied(array: mx.array, *_: object, **__: object) -> mx.array:
    """Stands in for `mx.contiguous`, which MLX cannot export: a copy of the same size."""
    return array * mx.ones(1, array.dtype)


def _states(layout: StateLayout, pattern: Caches, position: int) -> list[tuple[mx.array | None, ...]]:
    """Stand-ins for each leaf's tensors at a position, never evaluated."""
    found: list[tuple[mx.array | None, ...]] = []
    for path, layer in layout.leaves():
        cache = leaf_at(pattern, path)
        reach = trailing_reach(cache)
        length = None if layer.kind is StateKind.RECURRENT else min(position, reach or position)
        found.append(tuple(_stand_in(tensor, length) for tensor in known_traits(cache).tensors(cache)))
    return found


def _stand_in(tensor: mx.array | None, length: int | None) -> mx.array | None:
    if tensor is None or length is None:
        return tensor if tensor is None else mx.zeros(tensor.shape, tensor.dtype)
    return mx.zeros((*tensor.shape[:-2], length, tensor.shape[-1]), tensor.dtype)


def _read(records: Sequence[dict[str, Any]], num_weights: int) -> OpTrace:
    reader = _Reader()
    for record in records:
        match record["type"]:
            case "inputs":
                reader.inputs += reader.note(record["inputs"])
            case "outputs":
                reader.results += reader.note(record["outputs"])
            case "constants":
                reader.note([(name, array.shape, array.dtype) for name, array in record["constants"]])
            case "primitive":
                reader.add(record["name"], reader.note(record["inputs"]), reader.note(record["outputs"]))
            case _:
                pass
    held = frozenset(reader.inputs[1 + num_weights :])
    return OpTrace(tuple(reader.ops), reader.sizes, reader.elements, held, tuple(reader.results))


@dataclass(slots=True)
class _Reader:
    """`turned`: arrays whose elements do not lie in the order of their axes."""

    ops: list[Op] = field(default_factory=list[Op])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    elements: dict[str, int] = field(default_factory=dict[str, int])
    inputs: list[str] = field(default_factory=list[str])
    results: list[str] = field(default_factory=list[str])
    turned: set[str] = field(default_factory=set[str])

    def note(self, arrays: Sequence[tuple[str, Sequence[int], mx.Dtype]]) -> tuple[str, ...]:
        """The names, with the sizes remembered."""
        for name, shape, dtype in arrays:
            self.elements[name] = prod(shape)
            self.sizes[name] = prod(shape) * dtype.size
        return tuple(name for name, _, _ in arrays)

    def add(self, name: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> None:
        is_turned = bool(reads) and reads[0] in self.turned
        if name == "Transpose" or (name in _KEEPS_ORDER and is_turned):
            self.turned.update(writes)
        elif name in _NEEDS_ORDER and is_turned:
            name = f"Copy by {name}"
        self.ops.append(Op(name, reads, writes))


__all__ = ("trace_chunk",)
