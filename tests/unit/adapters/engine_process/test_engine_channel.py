"""A channel that several threads send on: one order, nothing lost, and the event loop is left alone where it can be."""

import asyncio
import errno
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from random import Random

from adapters.engine_process.channel import Channel, Deframer, framed
from tests.support.patience import PATIENCE_S

SIZES = (0, 1, 7, 100, 5_000, 70_000, 300_000)
NUM_EACH = 60


def payloads(sender: int) -> list[bytes]:
    draw = Random(sender)
    return [b"%d %d " % (sender, number) + bytes(draw.choice(SIZES)) for number in range(NUM_EACH)]


def send_all(channel: Channel, sender: int) -> None:
    for one in payloads(sender):
        channel.send(one)


class Ends:
    """A channel, and a plain socket at its other end. `told`: what the channel told of its end."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.told: list[str] = []
        self.received: list[bytes] = []
        self.over = asyncio.Event()
        self.channel = Channel(ours, self.received.append, self._ended)
        self.theirs.setblocking(False)
        for end in (ours, self.theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

    def _ended(self, why: str) -> None:
        self.told.append(why)
        self.over.set()

    async def read(self, most_bytes: int) -> bytes:
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self.theirs, most_bytes), PATIENCE_S)


@contextmanager
def both_ends() -> Generator[Ends, None, None]:
    ends = Ends()
    try:
        yield ends
    finally:
        ends.channel.close()
        ends.theirs.close()


def test_what_threads_send_past_a_slow_reader_comes_whole_and_in_the_order_of_each() -> None:
    async def run() -> list[bytes]:
        with both_ends() as ends:
            threads = [threading.Thread(target=send_all, args=(ends.channel, at), daemon=True) for at in (1, 2)]
            for thread in threads:
                thread.start()
            own, draw, frames, found = payloads(0), Random(9), Deframer(), list[bytes]()
            while len(found) < 3 * NUM_EACH:
                if own:
                    ends.channel.send(own.pop(0))
                found += frames.feed(await ends.read(draw.choice((3, 900, 40_000, 1 << 20))))
            for thread in threads:
                thread.join()
            assert ends.channel.num_unsent_bytes == 0
            return found

    found = asyncio.run(run())
    for sender in range(3):
        assert [one for one in found if one.startswith(b"%d " % sender)] == payloads(sender)


def test_what_the_socket_takes_is_sent_without_the_event_loop() -> None:
    async def run() -> None:
        with both_ends() as ends:
            thread = threading.Thread(target=ends.channel.send, args=(b"small",))
            thread.start()
            thread.join()  # the loop does not turn
            assert Deframer().feed(ends.theirs.recv(100)) == [b"small"]

    asyncio.run(run())


def test_a_reader_that_is_gone_is_reported_once_and_never_from_inside_send() -> None:
    async def run() -> None:
        with both_ends() as ends:
            ends.channel.send(bytes(1 << 22))
            assert ends.channel.num_unsent_bytes
            ends.theirs.close()
            thread = threading.Thread(target=ends.channel.send, args=(b"late",))
            thread.start()
            thread.join()
            ends.channel.send(b"later")
            assert not ends.told
            await asyncio.wait_for(ends.over.wait(), PATIENCE_S)
            ends.channel.send(b"too late")
            await asyncio.sleep(0)
            assert len(ends.told) == 1
            assert ends.channel.num_unsent_bytes == 0

    asyncio.run(run())


def test_nothing_is_sent_after_close_whatever_has_the_descriptor_by_then() -> None:
    async def run() -> None:
        with both_ends() as ends:
            ends.channel.close()
            other, others = socket.socketpair()  # the kernel gives the lowest number that is free
            others.setblocking(False)
            thread = threading.Thread(target=ends.channel.send, args=(b"late",))
            thread.start()
            thread.join()
            await asyncio.sleep(0)
            with other, others:
                other.send(b"own")
                assert others.recv(100) == b"own"
            assert ends.theirs.recv(100) == b""

    asyncio.run(run())


def test_what_is_kept_is_not_overtaken_when_the_socket_takes_more_again() -> None:
    async def run() -> None:
        with both_ends() as ends:
            ends.channel.send(bytes(1 << 20))
            frames, taken = Deframer(), all_of(ends)  # there is room now, and the loop has not turned
            ends.channel.send(b"behind")
            found = frames.feed(taken)
            while len(found) < 2:
                found += frames.feed(await ends.read(1 << 20))
            assert found == [bytes(1 << 20), b"behind"]

    asyncio.run(run())


def all_of(ends: Ends) -> bytes:
    """All that lies in the socket."""
    found = b""
    while True:
        try:
            found += ends.theirs.recv(1 << 20)
        except BlockingIOError:
            return found


class Interrupted(Channel):
    """Another thread sends while the first frame is being sent."""

    other: threading.Thread | None = None

    def _try(self, data: memoryview) -> memoryview:
        if self.other is None:
            self.other = threading.Thread(target=self.send, args=(b"second",))
            self.other.start()
            self.other.join(0.05)  # were it not held up by the first, it would have sent by then
        return super()._try(data)


def test_a_frame_waits_for_the_one_that_is_being_sent() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        channel = Interrupted(ours, lambda _: None, lambda _: None)
        channel.send(b"first")
        assert channel.other is not None
        channel.other.join(PATIENCE_S)
        with theirs:
            assert Deframer().feed(theirs.recv(100)) == [b"first", b"second"]
        channel.close()

    asyncio.run(run())


class Exhausted(socket.socket):
    """The kernel has no memory for what is sent; the connection stands."""

    def send(self, *_: object) -> int:
        raise OSError(errno.ENOBUFS, "No buffer space available")


def test_what_cannot_be_sent_ends_the_connection_instead_of_leaving_a_gap_in_it() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        over = asyncio.Event()
        channel = Channel(Exhausted(fileno=ours.detach()), lambda _: None, lambda _: over.set())
        channel.send(b"lost")
        with theirs:
            await asyncio.wait_for(over.wait(), PATIENCE_S)
            assert theirs.recv(100) == b""

    asyncio.run(run())


def test_what_is_left_is_received_before_the_end_is_told_where_nothing_reports_it() -> None:
    async def run() -> None:
        with both_ends() as ends:
            asyncio.get_running_loop().remove_reader(ends.channel._socket)  # as uvloop does at an error condition
            ends.theirs.send(framed(b"the last words"))
            ends.theirs.close()
            ends.channel.finish()
            assert (ends.received, len(ends.told)) == ([b"the last words"], 1)

    asyncio.run(run())


def test_a_failed_send_tells_the_end_where_nothing_reports_it() -> None:
    async def run() -> None:
        with both_ends() as ends:
            asyncio.get_running_loop().remove_reader(ends.channel._socket)
            ends.theirs.close()
            ends.channel.send(b"lost")
            await asyncio.wait_for(ends.over.wait(), PATIENCE_S)
            assert len(ends.told) == 1

    asyncio.run(run())
