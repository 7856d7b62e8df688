"""Which decode groups of one join which others, and that they do.

A row that cannot join goes on alone, and is not tried again. All that join one group do so at once. What is compared of
the groups is found once a step, not once for every pair of them.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from adapters.mlx.batch import DecodeGroup
from adapters.mlx.caches.rows import recurrent_shapes
from domain.decode_groups import choose_group
from domain.memory.shape import MemoryShape

_logger = logging.getLogger("cairn.mlx")


@dataclass(slots=True, eq=False)
class _Target:
    """A group that others may join. `lengths`: of its rows, and of those who are to join it."""

    group: DecodeGroup
    lengths: list[int]
    joining: list[DecodeGroup] = field(default_factory=list[DecodeGroup])


def join_groups(groups: Sequence[DecodeGroup], shape: MemoryShape) -> list[DecodeGroup]:
    """Let groups of one join others of similar length; returns the groups that are left, in order."""
    single = [group for group in groups if len(group.rows) == 1 and not group.stays_alone]
    targets = [_Target(group, _lengths(group)) for group in groups if group not in single]
    shapes = {group: recurrent_shapes(group.caches) for group in groups} if single else {}
    for group in single:
        alike = [one for one in targets if not one.group.stays_alone and shapes[one.group] == shapes[group]]
        index = choose_group(group.rows[0].position, [one.lengths for one in alike], shape)
        if index is None:
            targets.append(_Target(group, _lengths(group)))
        else:
            alike[index].joining.append(group)
            alike[index].lengths += _lengths(group)
    return [left for one in targets for left in (one.group, *_absorb_all(one.group, one.joining))]


def _lengths(group: DecodeGroup) -> list[int]:
    return [row.position for row in group.rows]


def _absorb_all(group: DecodeGroup, joining: Sequence[DecodeGroup]) -> list[DecodeGroup]:
    """Those that did not join. All at once, or, where that fails, each for itself; none whose last step failed."""
    if not joining or not group.confirm():
        return list(joining)
    sound = [other for other in joining if other.confirm()]
    lost = [other for other in joining if other not in sound]
    try:
        if sound:
            group.absorb(sound)
    except Exception as error:
        if len(sound) > 1:
            return [*lost, *(alone for other in sound for alone in _absorb_all(group, [other]))]
        sound[0].stays_alone = True
        _logger.warning("sequence %s could not join a batch and is decoded alone: %s", sound[0].rows[0].id, error)
        return list(joining)
    return lost


__all__ = ("join_groups",)
