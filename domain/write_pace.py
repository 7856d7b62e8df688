"""How fast captured state gets into the store, and what to do when that is too slow.

What was computed LAG_TARGET_S ago should survive the death of the process. So the time from an offer to the store is
foreseen from what waits and what the last batches took; where it nears the target, state may be encoded otherwise:

    calm ──half of the target is foreseen──► late ──a quarter──► calm

State that is written as it is takes less of the processors and more of the one thread that writes, and of the disk;
compressed state the other way round. So a store that compresses does not hurry where that thread is always at work.
Where it waits, be it for those that compress, for a processor or for the disk, it is tried whether state gets there
sooner: for a few batches, and as long as that stores more a second. A store that does not compress tries it at once.

    late ──the thread alone could write the other number of bytes clearly faster──► tries ──stores more──► hurries
"""

from dataclasses import dataclass

from domain.codec_choice import TYPICAL_RATIO

LAG_TARGET_S = 2.0

NUM_TRIED = 4
"""Batches that show what hurrying is worth; more than are on their way when it begins."""

_KEPT = 0.8
"""Of what was measured before, by each new measurement: the last five count for two thirds."""
_CLEARLY = 1.1
"""How much more must be stored in a hurry: it takes half as much room again, or more of the processor."""


@dataclass(slots=True)
class Rate:
    """Bytes over seconds, the latest for the most part. `bytes_s` is None until something was measured."""

    _bytes: float = 0.0
    _seconds: float = 0.0

    def add(self, num_bytes: int, seconds: float) -> None:
        self._bytes = self._bytes * _KEPT + num_bytes
        self._seconds = self._seconds * _KEPT + seconds

    @property
    def bytes_s(self) -> float | None:
        return self._bytes / self._seconds if self._bytes > 0 and self._seconds > 0 else None


class WritePace:
    """One caller at a time. `hurry_ratio`: how many times as many bytes are written in a hurry."""

    def __init__(self, target_s: float = LAG_TARGET_S, *, hurry_ratio: float = TYPICAL_RATIO) -> None:
        self._target_s = target_s
        self._hurry_ratio = hurry_ratio
        self._stored, self._calm, self._hurried = Rate(), Rate(), Rate()
        self._written = Rate()  # in no hurry, by the time that the thread was at work
        self._is_late = False
        self._num_tried = 0

    def stored(self, raw_bytes: int, seconds: float, worked_s: float, *, hurried: bool, ahead: bool) -> None:
        """A batch was written; `seconds` since the one before, or since it was begun if that was later. `worked_s`: for
        how much of it the thread that writes had a processor. `ahead`: the batch was begun before another was written,
        or the time is that of one from end to end, and tells nothing of what a store that falls behind waits for."""
        self._stored.add(raw_bytes, seconds)
        if not ahead:
            return
        (self._hurried if hurried else self._calm).add(raw_bytes, seconds)
        if not hurried:
            self._written.add(raw_bytes, worked_s)

    def hurries(self, waiting_bytes: int, waited_s: float) -> bool:
        """Asked for each batch. `waiting_bytes`: all that is not stored yet; `waited_s`: how long the oldest of it has
        waited."""
        bytes_s = self._stored.bytes_s
        foreseen_s = max(waited_s, waiting_bytes / bytes_s if bytes_s is not None else 0.0)
        was_late, self._is_late = self._is_late, foreseen_s > self._target_s / (4 if self._is_late else 2)
        if self._is_late and not was_late:
            self._hurried, self._num_tried = Rate(), 0
        return self._is_late and self._tries_or_pays()

    def _may_pay(self) -> bool:
        """Whether it could be clearly faster in a hurry. The work of writing grows with the bytes."""
        calm, written = self._calm.bytes_s, self._written.bytes_s
        return calm is not None and (written is None or written > calm * self._hurry_ratio * _CLEARLY)

    def _tries_or_pays(self) -> bool:
        if not self._num_tried and not self._may_pay():
            return False
        if self._num_tried < NUM_TRIED:
            self._num_tried += 1
            return True
        calm, hurried = self._calm.bytes_s, self._hurried.bytes_s
        return calm is None or hurried is None or hurried > calm * _CLEARLY


__all__ = ("LAG_TARGET_S", "NUM_TRIED", "Rate", "WritePace")
