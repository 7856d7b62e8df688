"""The publisher of KV events: a socket that publishes and one that answers replays, served by one thread.

It keeps no history. A replay from number n is answered with the present state under n, behind an event that clears what
the consumer had, and with empty batches under the numbers that follow; a part of the state that one batch cannot hold
is published for all, as feed. Without an endpoint for replays the state is published with each subscription.

Numbers begin at 0 with each start, and again after MAX_NUMBER, with the state, because a late consumer reads an answer
for every number: vllm-router reads about half a million before it gives up. A consumer notices a gap at the next batch,
so an empty one is sent when nothing has happened for a while.
"""

from collections.abc import Mapping, Sequence
from threading import Event, Thread
from typing import TypeAlias

import zmq

from adapters.zmq.event_wire import EventWire, batches
from application.events import FaultObserved, KvEventsSent
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.kv_events import KvEventFeed
from application.services.faults import described
from domain.prefix.published_blocks import BlockEvent

POLL_MS = 100
HEARTBEAT_S = 3.0
MAX_NUMBER = 250_000
CLOSE_TIMEOUT_S = 5.0
MAX_REQUEST_BYTES = 4_096

_Options: TypeAlias = Mapping[zmq.SocketOption, int]

_END = ((1 << 64) - 1).to_bytes(8, "big")


class CannotPublish(Exception):
    """An endpoint that cannot be bound."""


class ZmqPublisher:
    """A KvEventPublisher. It binds on construction; raises CannotPublish."""

    def __init__(
        self, endpoint: str, replay: str, topic: str, wire: EventWire, events: EventSink, clock: Clock
    ) -> None:
        """`replay`: the endpoint that answers replays; empty for none."""
        self._topic, self._wire, self._events, self._clock = topic.encode(), wire, events, clock
        self._context = zmq.Context[zmq.Socket[bytes]](io_threads=1)
        self._poller = zmq.Poller()
        self._number = self._num_subscribers = 0
        self._repeats = False  # the state is due for all
        self._closing, self._sent_ns = Event(), clock.now_ns()
        self._thread: Thread | None = None
        # XPUB and not PUB: it tells of subscriptions, and whether a subscriber's queue is full.
        self._out = self._bound(zmq.XPUB, "cache.events", endpoint, {zmq.XPUB_VERBOSER: 1})
        # An answer is one message a number. A consumer that does not read one gets no second one.
        options = {zmq.SNDHWM: MAX_NUMBER + 2, zmq.ROUTER_MANDATORY: 1}
        self._replays = self._bound(zmq.ROUTER, "cache.events_replay", replay, options) if replay else None

    def start(self, feed: KvEventFeed) -> None:
        self._thread = Thread(target=self._run, args=(feed,), name="cairn-kv-events", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread. A thread that waits for a store that hangs is left behind."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join(CLOSE_TIMEOUT_S)
        if self._thread is None or not self._thread.is_alive():
            self._context.destroy(linger=0)

    def _bound(self, kind: int, setting: str, endpoint: str, options: "_Options") -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        try:
            socket.setsockopt(zmq.MAXMSGSIZE, MAX_REQUEST_BYTES)
            for option, value in options.items():
                socket.setsockopt(option, value)
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise CannotPublish(f"{setting}: cannot listen on {endpoint}: {error.strerror}") from None
        self._poller.register(socket, zmq.POLLIN)
        return socket

    def _run(self, feed: KvEventFeed) -> None:
        while not self._closing.is_set():
            try:
                self._turn(feed)
            except Exception as error:
                self._events.emit(FaultObserved("cache.events", described(error), self._clock.now_ns()))
                self._repeats = True  # what was not sent is in the state
                self._closing.wait(HEARTBEAT_S)

    def _turn(self, feed: KvEventFeed) -> None:
        ready = dict(self._poller.poll(0 if feed.is_behind else POLL_MS))
        if self._out in ready:
            self._note_subscription(self._out.recv_multipart()[0])
        if self._replays is not None and self._replays in ready:
            self._answer(self._replays, self._replays.recv_multipart(), feed)
        if self._number >= MAX_NUMBER:
            self._number, self._repeats = 0, True
        if self._repeats:
            self._repeats = False
            for batch in batches(feed.state()):
                self._publish(batch)
        for batch in batches(feed.changes()):
            self._publish(batch)
        if self._clock.now_ns() - self._sent_ns >= HEARTBEAT_S * 1e9:
            self._publish(())

    def _note_subscription(self, message: bytes) -> None:
        self._num_subscribers += {b"\1": 1, b"\0": -1}.get(message[:1], 0)
        if message[:1] == b"\1" and self._replays is None:
            self._repeats = True  # it cannot ask for what it has missed

    def _publish(self, events: Sequence[BlockEvent]) -> None:
        frames = (self._topic, self._number.to_bytes(8, "big"), self._wire.payload(events, self._clock.unix_ns() / 1e9))
        self._number, self._sent_ns = self._number + 1, self._clock.now_ns()
        outcome = "sent"
        try:
            self._send(frames, is_strict=1)
        except zmq.Again:  # a subscriber's queue is full: the others get it
            outcome = "lost"
            self._send(frames, is_strict=0)
        self._events.emit(KvEventsSent(outcome, self._num_subscribers, self._sent_ns))

    def _send(self, frames: Sequence[bytes], *, is_strict: int) -> None:
        self._out.setsockopt(zmq.XPUB_NODROP, is_strict)
        self._out.send_multipart(frames, zmq.DONTWAIT)

    def _answer(self, replays: "zmq.Socket[bytes]", request: Sequence[bytes], feed: KvEventFeed) -> None:
        """Answers a request: the peer, an empty frame, the first number."""
        if len(request) != 3 or len(request[2]) != 8:
            return
        peer, first = request[0], int.from_bytes(request[2], "big")
        state, *rest = batches(feed.state())
        payload, empty = (
            self._wire.payload(state, self._clock.unix_ns() / 1e9),
            self._wire.payload((), self._clock.unix_ns() / 1e9),
        )
        end, outcome = self._number, "replayed"
        try:
            for number in range(first, end):
                frames = (self._topic, number.to_bytes(8, "big"), empty if number > first else payload)
                replays.send_multipart((peer, b"", *frames), zmq.DONTWAIT)
            replays.send_multipart((peer, b"", b"", _END, b""), zmq.DONTWAIT)
        except zmq.ZMQError:  # it is gone, or reads nothing
            outcome = "unread"
        for batch in rest if first < end else ():
            self._publish(batch)
        self._events.emit(KvEventsSent(outcome, self._num_subscribers, self._clock.now_ns()))
