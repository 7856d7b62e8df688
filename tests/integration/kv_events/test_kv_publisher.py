"""KV events over real sockets: the wire, late subscribers, losses, slow ones, and endpoints that cannot be used."""

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import zmq

from adapters.fake.environment import FakeClock
from adapters.zmq import event_wire, publisher
from adapters.zmq.event_wire import EventWire
from adapters.zmq.publisher import HEARTBEAT_S, ZmqPublisher
from application.events import FaultObserved, KvEventsSent
from application.settings import CacheSettings
from domain.errors import ServerUnavailable
from domain.id_row import IdRow
from domain.prefix.published_blocks import BlockEvent, BlocksCleared, BlocksRemoved, BlocksStored, Medium
from interfaces.composition.store import build_kv_publisher
from tests.support.patience import PATIENCE_S
from tests.support.stores.event_reader import EventReader
from tests.support.stores.published_picture import Picture
from tests.support.telemetry.recording import RecordingEvents

SIZE = 4


def stored(number: int, parent: int | None = None, num_blocks: int = 1) -> BlocksStored:
    hashes = tuple(bytes(24) + (number + at).to_bytes(8, "big") for at in range(num_blocks))
    before = None if parent is None else bytes(24) + parent.to_bytes(8, "big")
    return BlocksStored(
        hashes, before, IdRow(at % 2**31 for at in range(number, number + SIZE * num_blocks)), Medium.GPU
    )


class ListedFeed:
    """A feed of listed batches. `more` may be called from any thread."""

    def __init__(self) -> None:
        self._waiting: deque[Sequence[BlockEvent] | Exception] = deque()
        self._published: dict[tuple[bytes, ...], BlockEvent] = {}

    @property
    def is_behind(self) -> bool:
        return bool(self._waiting)

    def more(self, *events: BlockEvent) -> None:
        self._waiting.append(events)

    def fail(self) -> None:
        self._waiting.append(RuntimeError("a fault"))

    def changes(self) -> Sequence[BlockEvent]:
        if not self._waiting:
            return ()
        events = self._waiting.popleft()
        if isinstance(events, Exception):
            raise events
        for event in events:
            if isinstance(event, BlocksStored):
                self._published[event.hashes] = event
            elif isinstance(event, BlocksRemoved):
                self._published.pop(event.hashes)
        return events

    def state(self) -> Sequence[BlockEvent]:
        return [BlocksCleared(), *self._published.values()]


class Served:
    """A publisher on free ports with its feed. `clock` decides when a heartbeat is due."""

    def __init__(self, has_replay: bool, topic: str, are_integers: bool) -> None:
        self.endpoint, self.replay = (f"tcp://127.0.0.1:{port}" for port in _free_ports())
        self.replay = self.replay if has_replay else ""
        self.feed, self.clock, self.events, self.topic = ListedFeed(), FakeClock(), RecordingEvents(), topic
        wire = EventWire(SIZE, are_integers=are_integers)
        self.publisher = ZmqPublisher(self.endpoint, self.replay, topic, wire, self.events, self.clock)
        self.readers: list[EventReader] = []

    def reader(self) -> EventReader:
        self.readers.append(EventReader(self.endpoint, self.replay, SIZE, self.topic))
        return self.readers[-1]

    def beat(self) -> None:
        """A heartbeat is due."""
        self.clock.advance(HEARTBEAT_S)

    def outcomes(self) -> list[str]:
        return [event.outcome for event in self.events.of(KvEventsSent)]

    def until_subscribed(self, number: int = 1) -> None:
        """Until that many subscriptions have arrived: batches say how many there are."""
        _until(lambda: self.beat() or any(sent.num_subscribers >= number for sent in self.events.of(KvEventsSent)))


def _free_ports() -> list[int]:
    context = zmq.Context[zmq.Socket[bytes]]()
    sockets = [context.socket(zmq.PUB) for _ in range(2)]
    ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in sockets]
    context.destroy(linger=0)
    return ports


def _until(is_so: Callable[[], object]) -> None:
    """Until it is so; between two looks a poll of nothing waits a little."""
    poller = zmq.Poller()
    context = zmq.Context[zmq.Socket[bytes]]()
    socket = context.socket(zmq.PULL)
    poller.register(socket)
    try:
        assert any(is_so() or poller.poll(20) for _ in range(int(PATIENCE_S * 50)))
    finally:
        context.destroy(linger=0)


@contextmanager
def serving(*, has_replay: bool = True, topic: str = "", are_integers: bool = True) -> Iterator[Served]:
    served = Served(has_replay, topic, are_integers)
    served.publisher.start(served.feed)
    try:
        yield served
    finally:
        for reader in served.readers:
            reader.close()
        served.publisher.close()


def pictured(events: Sequence[BlockEvent]) -> Picture:
    picture = Picture(SIZE)
    picture.apply(events)
    return picture


@pytest.mark.parametrize("are_integers", [True, False])
def test_events_are_read_by_the_published_structs(are_integers: bool) -> None:
    with serving(topic="kv@a@toy", are_integers=are_integers) as served:
        reader = served.reader()
        served.until_subscribed()
        served.feed.more(BlocksCleared(), stored(1, num_blocks=2), stored(2**63, 2))
        served.feed.more(BlocksRemoved(stored(2**63).hashes, Medium.GPU))
        while not any(isinstance(event, BlocksRemoved) for event in reader.read()):
            pass
        found = [batch for batch in reader.batches if batch][-2:]
    length = 8 if are_integers else 32
    first, _, last = found[0]
    assert first == BlocksCleared()
    assert isinstance(last, BlocksStored)
    assert (last.hashes, last.parent) == ((stored(2**63).hashes[0][-length:],), stored(2).hashes[0][-length:])
    assert found[1] == [BlocksRemoved((stored(2**63).hashes[0][-length:],), Medium.GPU)]


def test_who_comes_late_gets_the_present_state_at_the_next_heartbeat() -> None:
    with serving() as served:
        for number in range(1, 40):
            served.feed.more(stored(number * 10))
        served.feed.more(BlocksRemoved(stored(50).hashes, Medium.GPU))
        _until(lambda: served.outcomes().count("sent") >= 40)
        reader = served.reader()
        served.until_subscribed()
        reader.read()
        expected = pictured(served.feed.state()).blocks
        assert reader.picture.blocks == expected
        assert len(expected) == 38
        assert reader.num_replays == 1
        assert served.outcomes().count("replayed") == 1


def test_what_was_lost_is_replaced_by_the_present_state() -> None:
    with serving() as served:
        reader = served.reader()
        served.until_subscribed()
        served.feed.more(stored(10), stored(20))
        while len(reader.picture.blocks) < 2:
            reader.read()
        served.feed.more(BlocksRemoved(stored(10).hashes, Medium.GPU), stored(30))
        reader.lose()
        served.feed.more(stored(40))
        reader.read()
        assert {path[0] for path in reader.picture.blocks} == {20, 30, 40}
        assert reader.picture.blocks == pictured(served.feed.state()).blocks


def test_a_state_of_several_batches_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_wire, "MAX_BATCH_TOKENS", 3 * SIZE)
    with serving() as served:
        served.feed.more(*(stored(number) for number in range(10, 300, 10)))
        _until(lambda: "sent" in served.outcomes())
        reader = served.reader()
        served.until_subscribed()
        while len(reader.picture.blocks) < 29:
            reader.read()
        assert reader.picture.blocks == pictured(served.feed.state()).blocks
        assert max(map(len, reader.batches)) <= 4


@pytest.mark.parametrize("has_replay", [True, False])
def test_numbers_begin_again_with_the_state(has_replay: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MAX_NUMBER", 50)
    with serving(has_replay=has_replay) as served:
        reader = served.reader()
        served.until_subscribed()
        for number in range(1, 120):
            served.feed.more(stored(number * 10))
            if number > 1:
                served.feed.more(BlocksRemoved(stored(number * 10 - 10).hashes, Medium.GPU))
        while {path[0] for path in reader.picture.blocks} != {1190}:
            reader.read()
        assert reader.numbers.count(0) >= 2
        assert max(reader.numbers) <= 51


def test_without_replays_a_new_subscriber_is_published_the_state_at_once() -> None:
    with serving(has_replay=False) as served:
        served.feed.more(stored(10), stored(20))
        _until(lambda: "sent" in served.outcomes())
        reader = served.reader()
        while len(reader.picture.blocks) < 2:
            reader.read()
        assert reader.num_replays == 0


def test_a_subscriber_that_reads_nothing_delays_nobody_and_is_counted() -> None:
    with serving() as served:
        context = zmq.Context[zmq.Socket[bytes]]()
        slow = context.socket(zmq.SUB)
        slow.setsockopt(zmq.RCVHWM, 1)
        slow.setsockopt(zmq.RCVBUF, 4_096)
        slow.connect(served.endpoint)
        slow.subscribe(b"")
        fast = served.reader()
        served.until_subscribed(2)
        for part in range(20):
            for number in range(2_000):
                served.feed.more(stored((part * 2_000 + number + 1) * 100, num_blocks=16))
            _until(lambda: not served.feed.is_behind)
            if "lost" in served.outcomes():
                break
        else:
            pytest.fail("no batch was lost")
        served.feed.more(stored(7))
        while not any(isinstance(event, BlocksStored) and event.token_ids[0] == 7 for event in fast.read()):
            pass
        gaps = [later - number for number, later in zip(fast.numbers, fast.numbers[1:], strict=False)]
        assert set(gaps) == {1}
        context.destroy(linger=0)


def test_a_fault_of_the_feed_is_reported_and_followed_by_the_state() -> None:
    with serving() as served:
        reader = served.reader()
        served.until_subscribed()
        served.feed.more(stored(10))
        served.feed.fail()
        served.feed.more(stored(20))
        while len(reader.picture.blocks) < 2:
            reader.read()
        assert [fault.where for fault in served.events.of(FaultObserved)] == ["cache.events"]
        assert reader.numbers == list(range(reader.numbers[0], reader.numbers[-1] + 1))


def test_a_request_that_is_none_is_passed_over() -> None:
    with serving() as served:
        context = zmq.Context[zmq.Socket[bytes]]()
        with context.socket(zmq.DEALER) as dealer:
            dealer.connect(served.replay)
            for frames in ((b"",), (b"", b"\0"), (b"", b"\0" * 8, b""), (b"x" * 9_000,)):
                dealer.send_multipart(frames)
            reader = served.reader()
            served.feed.more(stored(10))
            served.until_subscribed()
            while not reader.picture.blocks:
                reader.read()
        context.destroy(linger=0)


@pytest.mark.parametrize("name", ["events", "events_replay"])
def test_an_address_in_use_is_named_with_its_setting(name: str) -> None:
    with serving() as served:
        other = f"tcp://127.0.0.1:{_free_ports()[0]}"
        addresses = {"events": other, "events_replay": other} | {name: served.endpoint}
        with pytest.raises(
            ServerUnavailable, match=rf"cache\.{name}: cannot listen on {served.endpoint}: Address .* use"
        ):
            build_kv_publisher(CacheSettings(**addresses), RecordingEvents(), FakeClock())  # type: ignore[arg-type]


def test_without_its_library_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "adapters.zmq.publisher", None)
    with pytest.raises(ServerUnavailable, match=r'cache\.events: needs pyzmq; install the extra "events"'):
        build_kv_publisher(CacheSettings(events="tcp://127.0.0.1:5557"), RecordingEvents(), FakeClock())


def test_off_by_default() -> None:
    assert build_kv_publisher(CacheSettings(), RecordingEvents(), FakeClock()) is None
