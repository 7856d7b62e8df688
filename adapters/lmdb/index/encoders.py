"""Records made ready to be written, by threads of their own and ahead of the one that writes.

    begin(batch 1)   encode ████
    begin(batch 2)          encode ████
    write                   batch 1 ███   batch 2 ███

Reading has other threads, so that nobody who waits for a prefix waits behind what is being stored.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

from adapters.lmdb.format.payload import EncodedRecord, encode
from application.ports.state_codec import StateCodec
from application.services.lane import Lane
from domain.errors import ServerUnavailable
from domain.prefix.record import Record


@dataclass(frozen=True, slots=True)
class Begun:
    """A batch that is being encoded: `records` that were absent when it was begun, and what becomes of each, in
    order."""

    records: Sequence[Record]
    futures: Sequence["Future[EncodedRecord | None]"]


class Encoders:
    """`note_failure` is told why a record could
    not be encoded. Any thread."""

    def __init__(
        self,
        codec: StateCodec,
        note_failure: Callable[[str], None],
        *,
        num_threads: int,
    ) -> None:
        self._codec = codec
        self._note_failure = note_failure
        self._lane = Lane("store-encode", num_threads)

    def begin(self, records: Sequence[Record]) -> Begun:
        """Queue them; returns at once."""
        futures: list[Future[EncodedRecord | None]] = []
        for record in records:
            try:
                futures.append(self._lane.submit(self._encode, record))
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
                one = self._encode(record)
            if one is None:
                return None
            encoded.append(one)
        return encoded

    def close(self) -> None:
        """Encode nothing more, and wait for what is being encoded."""
        self._lane.close()
        self._lane.join()

    def _encode(self, record: Record) -> EncodedRecord | None:
        try:
            return encode(record, self._codec)
        except Exception as failure:  # a payload may still lie on a device, which fails in its own ways
            self._note_failure(f"{type(failure).__name__}: {failure}")
            return None
