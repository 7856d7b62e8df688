"""Full KV kept in 8 or 4 bits a number: the classes of one sequence and of a batch, and where a network uses them.

    update(keys, values)     quantised as they arrive: 6 arrays, written behind the tokens that are there
          returned           all tokens dequantised, lazily: a network's own code computes with those
    attention                of few queries computes with the 6 arrays, so that nothing is dequantised

A token's numbers are quantised by themselves, in groups along the width of a head, so the state does not depend on how
a prompt was divided. What is captured, stored and restored are the 6 arrays themselves. A width that no group divides
is filled up with zeros.

The buffers are those of the classes for plain KV, with three arrays a side (words, scales, biases) in place of one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from weakref import ref

import mlx.core as mx

from adapters.mlx.caches.kv_rows import KVRows, OneRow, grow, held_by, hold, lib
from domain.memory.kv_bits import LEAST_GROUP, KVBits
from domain.memory.shape import buffer_slots
from domain.models.state_layout import LeafPath


@dataclass(frozen=True, slots=True)
class Side:
    """How the keys, or the values, of one layer are quantised: heads of `width` numbers in groups of `group_size`."""

    bits: int
    group_size: int
    width: int

    def quantised(self, tokens: mx.array) -> list[mx.array]:
        """Words, scales and biases of [rows, heads, tokens, width]; lazy."""
        return list(mx.quantize(filled(tokens, self.group_size), group_size=self.group_size, bits=self.bits))

    def dequantised(self, parts: Sequence[mx.array]) -> mx.array:
        """The tokens again; lazy."""
        words, scales, biases = parts
        tokens = mx.dequantize(words, scales, biases, group_size=self.group_size, bits=self.bits)
        return tokens if tokens.shape[-1] == self.width else tokens[..., : self.width]


Sides: TypeAlias = tuple[Side, Side]
"""Of the keys, and of the values."""


def sides_of(bits: KVBits, key_width: int, value_width: int) -> Sides:
    """The sides of a layer. A width that the set group does not divide has groups of the smallest size."""

    def side(number: int, width: int) -> Side:
        return Side(number, LEAST_GROUP if width % bits.group_size else bits.group_size, width)

    return side(bits.keys, key_width), side(bits.values, value_width)


def filled(tokens: mx.array, group: int) -> mx.array:
    """Zeros behind the numbers of each head, up to a whole group."""
    missing = -tokens.shape[-1] % group
    return mx.pad(tokens, [(0, 0)] * (tokens.ndim - 1) + [(0, missing)]) if missing else tokens


class QuantisedBuffers:
    """The quantising of keys and values, the same in both classes. `sides`: how each of them is quantised."""

    keys: Any
    sides: Sides
    _fetched: tuple[ref[mx.array], ...] = ()

    def parts(self) -> list[mx.array]:
        """The quantised tokens of all rows: words, scales and biases of the keys, then of the values; views of the
        buffers."""
        rows, end = self.extent()
        return [buffer[:rows, :, :end] for buffer in held_by(self)]

    def keys_and_values(self) -> tuple[mx.array, mx.array]:
        """All tokens, dequantised: with the free slots, since a buffer without gaps need not be copied first."""
        buffers, (rows, end), (keys, values) = held_by(self), self.extent(), self.sides
        fetched = keys.dequantised(buffers[:3]), values.dequantised(buffers[3:])
        fetched = fetched[0][:rows, :, :end], fetched[1][:rows, :, :end]
        self._fetched = ref(fetched[0]), ref(fetched[1])
        return fetched

    def extent(self) -> tuple[int, int]:
        """The number of rows, and of slots in use."""
        raise NotImplementedError

    def is_last_fetched(self, keys: object, values: object) -> bool:
        """True if these are the array objects that the last update returned."""
        return len(self._fetched) == 2 and self._fetched[0]() is keys and self._fetched[1]() is values

    def _quantised(self, keys: mx.array, values: mx.array) -> list[mx.array]:
        return [*self.sides[0].quantised(keys), *self.sides[1].quantised(values)]


class QuantisedKV(QuantisedBuffers, OneRow, lib.KVCache):  # type: ignore[misc]
    """Full KV of one sequence. `keys`, `values`: three arrays each, [1, heads, slots, numbers]; None before the first
    token."""

    offset: int

    def __init__(self, sides: Sides) -> None:
        lib.KVCache.__init__(self)
        self.sides = sides

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        added, start, end = self._quantised(keys, values), self.offset, self.offset + keys.shape[2]
        if self.keys is None:
            slots = buffer_slots(end, self.step)
            hold(self, [mx.zeros((*one.shape[:2], slots, one.shape[3]), one.dtype) for one in added])
        grow(self, keys.shape[2])
        for buffer, one in zip(held_by(self), added, strict=True):
            buffer[..., start:end, :] = one
        self.offset = end
        return self.keys_and_values()

    def extent(self) -> tuple[int, int]:
        return self.keys[0].shape[0], self.offset


class QuantisedRows(QuantisedBuffers, KVRows):
    """The same of several sequences."""

    def __init__(self, first: QuantisedKV) -> None:
        KVRows.__init__(self, first)
        self.sides = first.sides

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        self.write(self._quantised(keys, values))
        return self.keys_and_values()

    def extent(self) -> tuple[int, int]:
        return self.num_rows, self._idx

    def _plain(self) -> QuantisedKV:
        return QuantisedKV(self.sides)


@dataclass(frozen=True, slots=True)
class QuantisedLayers:
    """The leaves of a network's caches that are kept quantised. `layer_bytes`: of one token's keys and values in
    the largest, dequantised."""

    bits: KVBits
    sides: Mapping[LeafPath, Sides]
    layer_bytes: int

    def replaced(self, caches: list[Any]) -> list[Any]:
        """Fresh caches with those leaves replaced."""
        for path, sides in self.sides.items():
            owner = caches
            for index in path[:-1]:
                owner[index].caches = owner = list(owner[index].caches)
            owner[path[-1]] = QuantisedKV(sides)
        return caches
