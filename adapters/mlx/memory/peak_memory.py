"""Corrections of estimated peaks, remembered by model: one small JSON file beside the remembered weight digests.

    {"<digest> <runtime>, <arithmetic>": [near, deep, num_measured], ...}

The key is what makes a peak comparable: the model by content, and what computes it. What is not to be believed counts
as not there.
"""

from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import astuple
from pathlib import Path
from typing import Any

from adapters.mlx.runtime.remembered import keep, recalled
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.memory.correction import LEAST_NEAR, MOST, PeakCorrection

_NAME = "memory-peaks.json"
_MAX_REMEMBERED = 256


class PeakMemory:
    """The file as the compute thread uses it: all that touches the disk is done in `lane`, since a volume that does not
    answer must not stop a prefill. At most one write waits there, with the latest of each model."""

    def __init__(self, memory_dir: Path, lane: Lane) -> None:
        self._dir, self._lane = memory_dir, lane
        self._unsaved: dict[str, PeakCorrection] = {}
        self._saving: Future[None] | None = None

    def recall(self, key: str) -> Generator[Future[Any] | None, None, PeakCorrection]:
        """As the function; to be waited for."""
        found = self._lane.submit(recall, self._dir, key)
        yield found
        return found.result()

    def remember(self, key: str, correction: PeakCorrection) -> None:
        """Soon."""
        self._unsaved[key] = correction
        if self._saving is not None and not (self._saving.running() or self._saving.done()):
            return  # what waits will see it
        try:
            self._saving = self._lane.submit(self._save)
        except ServerUnavailable:  # it ends; the next start learns it again
            return

    def _save(self) -> None:
        while self._unsaved:
            remember(self._dir, *self._unsaved.popitem())


def recall(memory_dir: Path | None, key: str) -> PeakCorrection:
    """The remembered correction of this model; an empty one where there is none."""
    return _read(memory_dir).get(key, PeakCorrection()) if memory_dir is not None else PeakCorrection()


def remember(memory_dir: Path | None, key: str, correction: PeakCorrection) -> None:
    """Keep it for the next start."""
    if memory_dir is None:
        return
    known = _read(memory_dir)
    known.pop(key, None)
    known[key] = correction
    told = {name: list(astuple(each)) for name, each in known.items()}
    keep(memory_dir / _NAME, told, _MAX_REMEMBERED)


def _read(memory_dir: Path) -> dict[str, PeakCorrection]:
    entries = recalled(memory_dir / _NAME).items()
    return {key: known for key, value in entries if (known := _correction(value)) is not None}


def _correction(value: object) -> PeakCorrection | None:
    match value:
        case [float(near), float(deep), int(count)]:
            is_bounded = LEAST_NEAR <= near <= MOST and 0 <= deep <= MOST and count >= 0
            return PeakCorrection(near, deep, count) if is_bounded else None
        case _:
            return None
