"""A text side that does not read stops the engine's steps: what is unread is bounded, and nothing of it is lost."""

import asyncio
import socket
from collections.abc import Callable

from adapters.engine_process.channel import Channel, Deframer, framed
from adapters.engine_process.host import EngineHost
from adapters.engine_process.messages import (
    Answer,
    Ask,
    Batch,
    Begin,
    Broken,
    Stop,
    Stopped,
    Submit,
    ToChild,
    ToParent,
    decoded,
    encoded,
    greeting,
    raw,
)
from adapters.engine_process.reports import ReaderGate
from adapters.fake.tokenizer import FakeTokenizer
from application.ports.engine import Tokens
from domain.models.model_card import LoadOptions
from tests.support.engines.engine_client import MODEL, hosted_toy, source
from tests.support.engines.sync_engine import submission
from tests.support.patience import PATIENCE_S

HIGH_BYTES = 8_000
NUM_TOKENS = 600


class WatchedGate(ReaderGate):
    """Tells when what is unsent has closed it, and the most that ever was at a turn."""

    def __init__(self) -> None:
        super().__init__(HIGH_BYTES)
        self.most_bytes = 0
        self.closed = asyncio.Event()

    def connect(self, num_unsent: Callable[[], int]) -> None:
        loop = asyncio.get_running_loop()

        def watched() -> int:
            num_bytes = num_unsent()
            self.most_bytes = max(self.most_bytes, num_bytes)
            if num_bytes > HIGH_BYTES:
                loop.call_soon_threadsafe(self.closed.set)
            return num_bytes

        super().connect(watched)


class SmallChannel(Channel):
    """With buffers in the kernel that fill soon."""

    def __init__(self, sock: socket.socket, *rest: object) -> None:
        super().__init__(sock, *rest)  # type: ignore[arg-type]
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4096)


async def converse() -> tuple[int, int]:
    """How many tokens came, and the most bytes that were ever unsent."""
    ours, theirs = socket.socketpair()
    gate, loop = WatchedGate(), asyncio.get_running_loop()
    hosting = asyncio.ensure_future(EngineHost(hosted_toy, gate, SmallChannel).run(theirs))
    ours.setblocking(False)

    async def say(message: ToChild) -> None:
        await loop.sock_sendall(ours, framed(encoded(message)))

    prompt = FakeTokenizer().encode("nobody listens")
    await say(Begin(b""))
    await say(Ask(0, "load", raw((source(MODEL), LoadOptions()))))
    frames, last = Deframer(), None
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(last, Answer):
            for payload in frames.feed(await loop.sock_recv(ours, 1 << 16)):
                last = None if payload == greeting() else decoded(payload, ToParent)
    await say(Submit(submission("a", MODEL, prompt, NUM_TOKENS)))
    async with asyncio.timeout(PATIENCE_S):
        await gate.closed.wait()  # and nobody has read a word
        num_tokens = 0
        while not isinstance(last, Stopped | Broken):
            for payload in frames.feed(await loop.sock_recv(ours, 1 << 16)):
                last = decoded(payload, ToParent)
                num_new = count_tokens(last)
                num_tokens += num_new
                if num_new and num_tokens == NUM_TOKENS:
                    await say(Stop(PATIENCE_S))
        assert await hosting == 0
    ours.close()
    assert isinstance(last, Stopped)
    assert last.in_time
    return num_tokens, gate.most_bytes


def count_tokens(message: ToParent) -> int:
    items = [item for *_, item in message.opened().items] if isinstance(message, Batch) else []
    return sum(len(item.token_ids) for item in items if isinstance(item, Tokens))


def test_what_nobody_reads_is_bounded_and_comes_when_somebody_does() -> None:
    num_tokens, most_bytes = asyncio.run(converse())
    assert num_tokens == NUM_TOKENS
    assert most_bytes < 3 * HIGH_BYTES
