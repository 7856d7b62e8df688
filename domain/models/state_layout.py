"""The state of a loaded model by layer, and the records that resuming at a position needs.

The compute adapter describes each layer by inspecting its cache object; layers of one kind and window form a state
group. The hit policy follows from the kind:

    kind        restorable from                                       hit policy
    SLICED      slices of the token axis, every block up to p         ALL
    WINDOWED    the same, only the blocks the window still reaches    TRAILING
    RECURRENT   nothing but a snapshot exactly at p                   SNAPSHOT
    COMPOSITE   its children, each by its own kind                    (no group of its own)
    UNSUPPORTED nothing: the model is served without prefix reuse     (no group)
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import TypeAlias

from domain.ids import GroupIndex


class StateKind(Enum):
    """The kind of a layer's state; see the module docstring."""

    SLICED = "sliced"
    WINDOWED = "windowed"
    RECURRENT = "recurrent"
    COMPOSITE = "composite"
    UNSUPPORTED = "unsupported"


class HitPolicy(Enum):
    """The blocks or the snapshot that a state group needs at a position."""

    ALL = "all"
    TRAILING = "trailing"
    SNAPSHOT = "snapshot"


POLICY_OF: dict[StateKind, HitPolicy] = {
    StateKind.SLICED: HitPolicy.ALL,
    StateKind.WINDOWED: HitPolicy.TRAILING,
    StateKind.RECURRENT: HitPolicy.SNAPSHOT,
}

LeafPath: TypeAlias = tuple[int, ...]
"""Index of a cache object, then of a child within each composite above it."""


@dataclass(frozen=True, slots=True)
class LayerState:
    """The state of one layer. `window`: in tokens, WINDOWED only. `label`: the cache class, for logs and
    fingerprints."""

    kind: StateKind
    label: str
    window: int | None = None
    children: tuple["LayerState", ...] = ()


@dataclass(frozen=True, slots=True)
class StateGroup:
    """The leaves of one kind and window, in layout order: the unit of storing and of the hit policy."""

    index: GroupIndex
    policy: HitPolicy
    window: int | None
    leaves: tuple[LeafPath, ...]


@dataclass(frozen=True)
class StateLayout:
    """The ordered cache objects of one loaded model."""

    layers: tuple[LayerState, ...]

    def leaves(self) -> Iterator[tuple[LeafPath, LayerState]]:
        """Every layer that is not a composite with its path, depth first."""
        yield from _leaves((), self.layers)

    @cached_property
    def groups(self) -> tuple[StateGroup, ...]:
        """State groups, ALL first, then TRAILING by window, then SNAPSHOT; stable for a given layout."""
        found: dict[tuple[HitPolicy, int | None], list[LeafPath]] = {}
        for path, layer in self.leaves():
            if layer.kind in POLICY_OF:
                found.setdefault((POLICY_OF[layer.kind], layer.window), []).append(path)
        order = {policy: rank for rank, policy in enumerate(HitPolicy)}
        keys = sorted(found, key=lambda key: (order[key[0]], key[1] or 0))
        return tuple(
            StateGroup(GroupIndex(index), policy, window, tuple(found[policy, window]))
            for index, (policy, window) in enumerate(keys)
        )

    @cached_property
    def unsupported(self) -> tuple[str, ...]:
        """The cache classes that cannot be captured; empty if prefixes of the model can be reused."""
        labels = {layer.label for _, layer in self.leaves() if layer.kind is StateKind.UNSUPPORTED}
        return tuple(sorted(labels))

    @property
    def num_layers(self) -> Mapping[tuple[StateKind, int | None], int]:
        """The number of leaves of each kind and window, in the order of their first leaf."""
        return Counter((layer.kind, layer.window) for _, layer in self.leaves())

    @property
    def is_reusable(self) -> bool:
        """True if state can be captured and restored."""
        return not self.unsupported and bool(self.groups)

    @property
    def needs_snapshots(self) -> bool:
        """True if resuming needs a snapshot, as for recurrent and hybrid models."""
        return any(group.policy is HitPolicy.SNAPSHOT for group in self.groups)

    def describe(self) -> str:
        """The canonical text of the layout; part of the fingerprint, shown by `doctor` and `explain`."""
        return ";".join(_describe(layer) for layer in self.layers)


def _leaves(prefix: LeafPath, layers: tuple[LayerState, ...]) -> Iterator[tuple[LeafPath, LayerState]]:
    for index, layer in enumerate(layers):
        path = (*prefix, index)
        if layer.kind is StateKind.COMPOSITE:
            yield from _leaves(path, layer.children)
        else:
            yield path, layer


def _describe(layer: LayerState) -> str:
    window = "" if layer.window is None else f":{layer.window}"
    inner = f"({','.join(_describe(child) for child in layer.children)})" if layer.children else ""
    return f"{layer.kind.value}{window}={layer.label}{inner}"
