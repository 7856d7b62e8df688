"""Read-ahead touches what is there, in order, whatever fails, and nothing once closed."""

from threading import Event, Lock

from adapters.lmdb.faults import Damaged
from adapters.lmdb.read_ahead import ReadAhead
from adapters.lmdb.rows import Row
from domain.ids import GroupIndex
from domain.record import Provenance, RecordKey
from tests.support.patience import PATIENCE_S
from tests.support.store_records import chain, keys_of, namespace_of

KEYS = keys_of(chain(namespace_of("one"), 5))


def row(id: int) -> Row:
    return Row(id, 0, 0, 0, 0, 0, 1, Provenance.PREFILL, KEYS[0].hash)  # type: ignore[union-attr]


class Toucher:
    """Notes the rows; row 1 is damaged. Holds row 3 until `go_on`."""

    def __init__(self) -> None:
        self.touched: list[tuple[RecordKey, int, frozenset[GroupIndex] | None]] = []
        self.is_held, self.go_on = Event(), Event()
        self._lock = Lock()

    def touch(self, key: RecordKey, row: Row, wanted: frozenset[GroupIndex] | None) -> None:
        if row.id == 3:
            self.is_held.set()
            assert self.go_on.wait(PATIENCE_S)
        with self._lock:
            self.touched.append((key, row.id, wanted))
        if row.id == 1:
            raise Damaged("a page is not there")


def test_what_is_there_is_touched_and_failures_are_left_to_the_reader() -> None:
    toucher, wanted = Toucher(), frozenset({GroupIndex(1)})
    ahead = ReadAhead(toucher)
    ahead.start([(KEYS[0], row(1), None), (KEYS[1], None, None), (KEYS[2], row(3), wanted), (KEYS[3], row(4), None)])
    assert toucher.is_held.wait(PATIENCE_S)
    toucher.go_on.set()
    ahead.close()
    assert {(KEYS[0], 1, None), (KEYS[2], 3, wanted)} <= set(toucher.touched)
    assert all(key != KEYS[1] for key, _, _ in toucher.touched)


def test_closing_waits_for_what_is_under_way_and_starts_nothing_more() -> None:
    toucher = Toucher()
    ahead = ReadAhead(toucher, num_threads=1)
    ahead.start([(KEYS[0], row(3), None), (KEYS[1], row(5), None)])
    assert toucher.is_held.wait(PATIENCE_S)
    toucher.go_on.set()
    ahead.close()
    assert toucher.touched[0] == (KEYS[0], 3, None)
    count = len(toucher.touched)
    ahead.start([(KEYS[2], row(6), None)])
    assert len(toucher.touched) == count
