"""What traces found, remembered from one start to the next: one small JSON file beside the remembered weight digests.

    {"<trace key> <code key>": [[step], [[needed], bound_bytes]], ...}    the last part null where nothing holds prefill

Step and needed are the fields of a `StepCost` in order, all whole numbers. What is not to be believed counts as not
there, and is traced anew; what could not be traced is never here.
"""

from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeGuard, cast

from adapters.mlx.remembered import keep, recalled
from adapters.mlx.step_trace import Traced
from adapters.mlx.trace_key import code_key
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.memory.shape import AheadBound, StepCost

_NAME = "memory-traces.json"
_FIELDS = tuple(field.name for field in fields(StepCost))
_MAX_REMEMBERED = 256
_MOST = 1 << 60
"""No number of a trace comes near it."""


class TraceMemory:
    """The file as the compute thread uses it: all that touches the disk is done in `lane`."""

    def __init__(self, memory_dir: Path, lane: Lane | Executor, code: Callable[[], str] = code_key) -> None:
        """`code`: as `code_key`; asked in `lane`."""
        self._dir, self._lane, self._code = memory_dir, lane, code

    def recall(self, key: str) -> Generator[Future[Any] | None, None, Traced | None]:
        """By the `trace_key`; to be waited for. None when nobody knows."""
        found = self._lane.submit(self._recall, key)
        yield found
        return found.result()

    def remember(self, key: str, traced: Traced) -> None:
        """Soon."""
        try:
            self._lane.submit(self._remember, key, traced)
        except ServerUnavailable:  # it ends; the next start traces again
            return

    def _recall(self, key: str) -> Traced | None:
        name = self._name(key)
        return None if name is None else _traced(recalled(self._dir / _NAME).get(name))

    def _remember(self, key: str, traced: Traced) -> None:
        name, (step, ahead) = self._name(key), traced
        if name is None:
            return
        entries = recalled(self._dir / _NAME).items()
        known = {other: entry for other, entry in entries if other != name and _traced(entry) is not None}
        told = [astuple(step), None if ahead is None else astuple(ahead)]
        keep(self._dir / _NAME, {**known, name: told}, _MAX_REMEMBERED)

    def _name(self, key: str) -> str | None:
        """None where the sources cannot be read: then nobody can tell what a trace was made by."""
        try:
            return f"{key} {self._code()}"
        except OSError:
            return None


def _traced(entry: object) -> Traced | None:
    told_step, told_ahead = _items(entry, 2) or (None, None)
    step = _step(told_step)
    if step is None or told_ahead is None:
        return None if step is None else (step, None)
    told_needed, bound = _items(told_ahead, 2) or (None, None)
    needed = _step(told_needed)
    return (step, AheadBound(needed, bound)) if needed is not None and _is_number(bound) else None


def _step(told: object) -> StepCost | None:
    values = _items(told, len(_FIELDS))
    if values is None or not all(map(_is_number, values)):
        return None
    found = StepCost(**dict(zip(_FIELDS, cast(list[int], values), strict=True)))
    return found if min(found.most_bytes, found.most_chunk, found.most_end) > 0 else None  # as of every trace


def _items(told: object, count: int) -> list[object] | None:
    items = cast(list[object], told) if isinstance(told, list) else []
    return items if len(items) == count else None


def _is_number(value: object) -> TypeGuard[int]:
    return type(value) is int and 0 <= value <= _MOST


__all__ = ("TraceMemory",)
