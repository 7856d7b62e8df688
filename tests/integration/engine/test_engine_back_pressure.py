"""A text side that does not read stops the engine's steps: what is unread is bounded, and nothing of it is lost."""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from adapters.engine_process import reports
from adapters.engine_process.channel import Channel, Deframer, framed
from adapters.engine_process.host import EngineHost, Hosted
from adapters.engine_process.messages import (
    Ask,
    Batch,
    Begin,
    Broken,
    EngineReply,
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
from adapters.fake.tokenizer import FakeTokenizer
from application.ports.engine import Tokens
from domain.models.model_card import LoadOptions
from tests.support.engines.engine_client import MODEL, hosted_toy, source
from tests.support.engines.sync_engine import submission
from tests.support.patience import PATIENCE_S

HIGH_BYTES = 8_000
NUM_TOKENS = 600


class SmallChannel(Channel):
    """A channel over small kernel buffers. `most_bytes`: the most that was unsent at a turn of the engine. `is_full`:
    the engine was held."""

    def __init__(self, sock: socket.socket, *rest: object) -> None:
        super().__init__(sock, *rest)  # type: ignore[arg-type]
        self.most_bytes, self.is_full = 0, asyncio.Event()
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, 4096)

    def note_turn(self) -> None:
        self.most_bytes = max(self.most_bytes, self.num_unsent_bytes)
        if self.num_unsent_bytes > HIGH_BYTES:
            self._loop.call_soon_threadsafe(self.is_full.set)


async def converse() -> tuple[int, int]:
    """How many tokens came, and the most bytes that were ever unsent."""
    ours, theirs = socket.socketpair()
    channels, loop = list[SmallChannel](), asyncio.get_running_loop()

    def make(settings: bytes, hold: Callable[[], None]) -> Hosted:
        def watched() -> None:
            channels[0].note_turn()
            hold()

        return hosted_toy(settings, watched)

    def open_channel(*rest: Any) -> SmallChannel:
        channels.append(SmallChannel(*rest))
        return channels[0]

    hosting = asyncio.ensure_future(EngineHost(make, open_channel).run(theirs))
    ours.setblocking(False)

    async def say(message: ToChild) -> None:
        await loop.sock_sendall(ours, framed(encoded(message)))

    prompt = FakeTokenizer().encode("nobody listens")
    await say(Begin(b""))
    await say(Ask(0, "load", raw((source(MODEL), LoadOptions()))))
    frames, last = Deframer(), None
    async with asyncio.timeout(PATIENCE_S):
        while not isinstance(last, EngineReply):
            for payload in frames.feed(await loop.sock_recv(ours, 1 << 16)):
                last = None if payload == greeting() else decoded(payload, ToParent)
    await say(Submit(submission("a", MODEL, prompt, NUM_TOKENS)))
    async with asyncio.timeout(PATIENCE_S):
        await channels[0].is_full.wait()  # and no item was read
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
    return num_tokens, channels[0].most_bytes


def count_tokens(message: ToParent) -> int:
    items = [item for *_, item in message.opened().items] if isinstance(message, Batch) else []
    return sum(len(item.token_ids) for item in items if isinstance(item, Tokens))


def test_what_nobody_reads_is_bounded_and_comes_when_somebody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "HIGH_BYTES", HIGH_BYTES)
    num_tokens, most_bytes = asyncio.run(converse())
    assert num_tokens == NUM_TOKENS
    assert most_bytes < 3 * HIGH_BYTES
