"""One end of a connected pair of sockets, on an event loop that never waits for the other end.

Messages are framed by their length in four bytes, most significant first. Bytes that the socket does not accept are
kept and sent by the loop when it does; `num_unsent_bytes` counts them, and `moved` is called when the number falls. The
end of the connection is reported once, whichever side caused it, and never from inside `send`.

Event loop only, except for `send`, which any thread may call: it wakes the loop only where bytes are kept. A lock is
held while ready bytes are sent or kept, so that frames do not interleave and none goes to a closed descriptor, whose
number may be in use again.
"""

import asyncio
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

MAX_FRAME_BYTES = 1 << 30
"""The longest frame of this protocol."""

READ_BYTES = 1 << 18
BUFFER_BYTES = 1 << 22
"""The requested size of the kernel's buffers, in which a long prompt fits; the kernel may grant less."""

_LENGTH = struct.Struct(">I")


class BrokenStream(Exception):
    """The received bytes are not a sequence of frames."""


def framed(payload: bytes) -> bytes:
    """Returns the frame of a payload. Raises BrokenStream if it is too long."""
    if len(payload) > MAX_FRAME_BYTES:
        raise BrokenStream(f"a message of {len(payload)} bytes exceeds the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(payload)) + payload


class Deframer:
    """The reader of frames from received bytes. Memory: one frame and the bytes read behind it."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the payloads that are complete now. Raises BrokenStream."""
        held, payloads, at = self._held, list[bytes](), 0
        held += data
        while len(held) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(held, at)
            if length > MAX_FRAME_BYTES:
                raise BrokenStream(f"an announced message of {length} bytes exceeds the limit of {MAX_FRAME_BYTES}")
            end = at + _LENGTH.size + length
            if len(held) < end:
                break
            payloads.append(bytes(memoryview(held)[at + _LENGTH.size : end]))
            at = end
        if at:
            del held[:at]
        return payloads


class Channel:
    """A framed connection. `received` takes each payload in order and must not raise; `ended` takes the reason of the
    end, after which nothing is received."""

    def __init__(
        self,
        sock: socket.socket,
        received: Callable[[bytes], None],
        ended: Callable[[str], None],
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        """Takes ownership of the socket. Needs a running loop."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._received, self._ended, self._moved = received, ended, moved
        self._frames = Deframer()
        self._lock = threading.Lock()  # guards the unsent bytes and the socket's life
        self._unsent: deque[memoryview] = deque()
        self.num_unsent_bytes = 0
        self._is_closed = False
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
        self._loop.add_reader(sock.fileno(), self._read)

    def send(self, payload: bytes) -> None:
        """Sends payloads in the order of the calls, on whichever thread. After the end they are dropped. Raises
        BrokenStream for a payload that is too long. Any thread."""
        data = memoryview(framed(payload))
        with self._lock:
            if self._is_closed:
                return
            is_first = not self._unsent
            rest = self._try(data) if is_first else data
            if not rest:
                return
            self._unsent.append(rest)
            self.num_unsent_bytes += len(rest)
        if is_first:
            with suppress(RuntimeError):  # the loop was closed, and so is the connection
                self._loop.call_soon_threadsafe(self._watch)

    def close(self) -> None:
        """Ends the connection without a report. Idempotent."""
        if self._is_closed:
            return
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        with self._lock:
            self._is_closed = True
            self._socket.close()
            self._unsent.clear()
            self.num_unsent_bytes = 0

    def finish(self) -> None:
        """Receives what is left of a connection whose other end is gone, and reports its end.

        uvloop may stop watching a descriptor at an error condition, as when a peer ends with bytes that it has not
        read, and reports nothing then."""
        while not self._is_closed and self._read():
            pass
        if not self._is_closed:
            self._end("the other end is gone")

    def _watch(self) -> None:
        """Sends the kept bytes when the socket accepts more."""
        if not self._is_closed:
            self._loop.add_writer(self._socket.fileno(), self._write)

    def _try(self, data: memoryview) -> memoryview:
        """Returns the bytes that the socket does not accept. After any failure none are left: the connection is shut
        down, since later frames would be damaged, and its end is reported soon."""
        try:
            while data:
                data = data[self._socket.send(data) :]
        except (BlockingIOError, InterruptedError):
            return data
        except OSError:
            with suppress(OSError):  # it is at its end already
                self._socket.shutdown(socket.SHUT_RDWR)
            with suppress(RuntimeError):  # the loop was closed
                self._loop.call_soon_threadsafe(self.finish)
            return data[len(data) :]
        return data

    def _write(self) -> None:
        with self._lock:
            while self._unsent:
                first = self._unsent.popleft()
                rest = self._try(first)
                self.num_unsent_bytes -= len(first) - len(rest)
                if rest:
                    self._unsent.appendleft(rest)
                    break
            else:
                self._loop.remove_writer(self._socket.fileno())
        self._moved()

    def _read(self) -> bool:
        """Takes what has arrived. Returns whether anything had."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            self._end(f"the connection broke: {error.strerror or error}")
            return False
        if not data:
            self._end("the connection was closed")
            return False
        try:
            payloads = self._frames.feed(data)
        except BrokenStream as error:
            self._end(f"an invalid message was received: {error}")
            return False
        for payload in payloads:
            if not self._is_closed:
                self._received(payload)
        return True

    def _end(self, why: str) -> None:
        self.close()
        self._ended(why)
