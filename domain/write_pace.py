"""How fast captured state gets into the store, and what to do when that is too slow.

What was computed LAG_TARGET_S ago should survive the death of the process. So the time from an offer to the store is
foreseen from what waits and what the last batches took; where it nears the target, density may give way to speed:

    calm ──half of the target is foreseen──► late ──a quarter──► calm

State that is written as it is takes less of the processor and more of the one thread that writes, and of the disk. So a
store that has become late hurries where that thread waits for those that compress, as long as it would take longer for
more bytes. Whether it does get there sooner is tried: for a few batches, and as long as that stores more a second.

    late ──writing alone, for more bytes, would be clearly faster──► tries ──stores clearly more──► hurries
"""

from dataclasses import dataclass

from domain.codec_choice import TYPICAL_RATIO

LAG_TARGET_S = 2.0

NUM_TRIED = 4
"""Batches that show what hurrying is worth; more than are on their way when it begins."""

_KEPT = 0.8
"""Of what was measured before, by each new measurement: the last five count for two thirds."""
_CLEARLY = 1.1
"""How much more must be stored in a hurry: it takes half as much room again."""


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
    """One caller at a time."""

    def __init__(self, target_s: float = LAG_TARGET_S) -> None:
        self._target_s = target_s
        self._stored, self._dense, self._hurried = Rate(), Rate(), Rate()
        self._written = Rate()  # dense state, while nobody was waited for
        self._is_late = False
        self._num_tried = 0

    def stored(self, raw_bytes: int, seconds: float, waited_s: float, *, hurried: bool, ahead: bool) -> None:
        """A batch was written; `seconds` since the one before, or since it was begun if that was later. `waited_s`: how
        much of it went by until the batch was compressed. `ahead`: that began before another was written, or the time
        is that of one batch from end to end, and tells nothing of what a store that falls behind waits for."""
        self._stored.add(raw_bytes, seconds)
        if not ahead:
            return
        (self._hurried if hurried else self._dense).add(raw_bytes, seconds)
        if not hurried:
            self._written.add(raw_bytes, seconds - waited_s)

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
        """Whether writing as it is could be clearly faster. What writing takes grows with the bytes."""
        dense, written = self._dense.bytes_s, self._written.bytes_s
        return dense is not None and (written is None or written > dense * TYPICAL_RATIO * _CLEARLY)

    def _tries_or_pays(self) -> bool:
        if not self._num_tried and not self._may_pay():
            return False
        if self._num_tried < NUM_TRIED:
            self._num_tried += 1
            return True
        dense, hurried = self._dense.bytes_s, self._hurried.bytes_s
        return dense is None or hurried is None or hurried > dense * _CLEARLY


__all__ = ("LAG_TARGET_S", "NUM_TRIED", "Rate", "WritePace")
