"""How fast captured state gets into the store, and what to do when that is too slow.

What was computed LAG_TARGET_S ago should survive the death of the process. So the time from an offer to the store is
foreseen from what waits and what the last batches took; where it nears the target, density gives way to speed:

    calm ──half of the target is foreseen──► hurrying ──a quarter──► calm

Which encoding is the quicker one is measured as well. Encoding and writing overlap, so the slower of the two decides.
"""

from dataclasses import dataclass

LAG_TARGET_S = 2.0

_KEPT = 0.8
"""Of what was measured before, by each new measurement: the last five count for two thirds."""
_CLEARLY = 1.1
"""How much quicker raw state must be: it takes half as much room again."""


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
        self._stored = Rate()
        self._is_hurrying = False

    def stored(self, raw_bytes: int, seconds: float) -> None:
        """A batch was written; `seconds` since the one before, or since it was begun if that was later."""
        self._stored.add(raw_bytes, seconds)

    def hurries(self, waiting_bytes: int, waited_s: float) -> bool:
        """`waiting_bytes`: all that is not stored yet; `waited_s`: how long the oldest of it has waited."""
        bytes_s = self._stored.bytes_s
        foreseen_s = max(waited_s, waiting_bytes / bytes_s if bytes_s is not None else 0.0)
        self._is_hurrying = foreseen_s > self._target_s / (4 if self._is_hurrying else 2)
        return self._is_hurrying


class EncodingPace:
    """Which of the two encodings puts more state a second into the store. One caller at a time."""

    def __init__(self, num_threads: int) -> None:
        """`num_threads`: encode at once."""
        self._num_threads = num_threads
        self._dense, self._raw, self._written = Rate(), Rate(), Rate()
        self._ratio = Rate()

    def encoded(self, raw_bytes: int, stored_bytes: int, seconds: float, *, is_dense: bool) -> None:
        """`seconds` of one thread."""
        (self._dense if is_dense else self._raw).add(raw_bytes, seconds)
        if is_dense:
            self._ratio.add(raw_bytes, stored_bytes)

    def written(self, stored_bytes: int, seconds: float) -> None:
        """`seconds` from the beginning of a transaction to its end."""
        self._written.add(stored_bytes, seconds)

    @property
    def is_raw_quicker(self) -> bool:
        """False while nothing is known."""
        dense_bytes_s, written_bytes_s, ratio = self._dense.bytes_s, self._written.bytes_s, self._ratio.bytes_s
        if dense_bytes_s is None or written_bytes_s is None or ratio is None:
            return False
        raw_bytes_s = self._raw.bytes_s
        dense = min(dense_bytes_s * self._num_threads, written_bytes_s * ratio)
        raw = min(raw_bytes_s * self._num_threads, written_bytes_s) if raw_bytes_s is not None else written_bytes_s
        return raw > dense * _CLEARLY


__all__ = ("LAG_TARGET_S", "EncodingPace", "Rate", "WritePace")
