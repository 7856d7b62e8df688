"""Records made ready to be written, by threads of their own and ahead of the one that writes.

    begin(batch 1)   encode ████
    begin(batch 2)          encode ████
    write                   batch 1 ███   batch 2 ███

Reading has other threads, so that nobody who waits for a prefix waits behind what is being stored. Where the store
falls behind, batches are encoded the quicker way, whichever that was measured to be.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from threading import Lock

from adapters.lmdb.payload import EncodedRecord, encode
from application.ports.clock import Clock
from application.ports.state_codec import StateCodec
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.record import Record
from domain.write_pace import EncodingPace


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that is being encoded: `records` that were absent when it was begun, and what becomes of each, in
    order."""

    records: Sequence[Record]
    futures: Sequence["Future[EncodedRecord | None]"]


class Encoders:
    """`quick`: writes more bytes in less time than `codec`; None: there is no such choice. `note_failure` is told why
    a record could not be encoded. Any thread."""

    def __init__(
        self,
        codec: StateCodec,
        quick: StateCodec | None,
        clock: Clock,
        note_failure: Callable[[str], None],
        *,
        num_threads: int,
    ) -> None:
        self._codec = codec
        self._quick = quick
        self._clock = clock
        self._note_failure = note_failure
        self._lane = Lane("store-encode", num_threads)
        self._pace = EncodingPace(num_threads)
        self._lock = Lock()

    def begin(self, records: Sequence[Record], *, hurry: bool) -> Begun:
        """Queue them; returns at once. With `hurry` by the encoding that gets more of them into the store."""
        codec = self._codec
        if hurry and self._quick is not None:
            with self._lock:
                codec = self._quick if self._pace.is_raw_quicker else codec
        futures: list[Future[EncodedRecord | None]] = []
        for record in records:
            try:
                futures.append(self._lane.submit(self._encode, record, codec))
            except ServerUnavailable:  # closed in between
                break
        return Begun(records, futures)

    def finish(self, begun: Begun) -> list[EncodedRecord] | None:
        """Wait for a batch; None when a record of it could not be encoded."""
        encoded: list[EncodedRecord] = []
        for index, record in enumerate(begun.records):
            try:
                one = begun.futures[index].result()
            except (IndexError, CancelledError):  # closed in between
                one = self._encode(record, self._codec)
            if one is None:
                return None
            encoded.append(one)
        return encoded

    def written(self, stored_bytes: int, seconds: float) -> None:
        """What a transaction took."""
        with self._lock:
            self._pace.written(stored_bytes, seconds)

    def close(self) -> None:
        """Encode nothing more, and wait for what is being encoded."""
        self._lane.close()
        self._lane.join()

    def _encode(self, record: Record, codec: StateCodec) -> EncodedRecord | None:
        started_ns = self._clock.now_ns()
        try:
            encoded = encode(record, codec)
        except Exception as failure:  # a payload may still lie on a device, which fails in its own ways
            self._note_failure(f"{type(failure).__name__}: {failure}")
            return None
        seconds = (self._clock.now_ns() - started_ns) / 1e9
        with self._lock:
            self._pace.encoded(encoded.raw_bytes, encoded.stream_bytes, seconds, is_dense=codec is self._codec)
        return encoded


__all__ = ("Begun", "Encoders")
