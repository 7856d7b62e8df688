"""What a prompt costs on its way into an engine's process: written on the text side, read and hashed in the child.

    python -m bench.engine_messages [--tokens 200000] [--rounds 15]

Least milliseconds of processor time of all rounds, and blocks of memory that the interpreter holds for what was made.
The baseline of the same run is msgpack's own list of integers.
"""

import argparse
import asyncio
import random
import socket
import sys
import time
from collections.abc import Callable

from adapters.engine_process.channel import Channel
from adapters.engine_process.messages import Submit, ToChild
from adapters.engine_process.values import decoded, encoded
from application.ports.engine import Submission
from domain.hashing import BlockChain
from domain.ids import ModelId, RequestId
from domain.prompt_content import EncodedPrompt
from domain.record import Namespace
from domain.sampling import SamplingParams

BLOCK = 256


def measured(work: Callable[[], object], rounds: int) -> tuple[float, int]:
    taken: list[float] = []
    num_blocks = 0
    for _ in range(rounds):
        num_before, began_s = sys.getallocatedblocks(), time.thread_time()
        made = work()
        taken.append(time.thread_time() - began_s)
        num_blocks = sys.getallocatedblocks() - num_before
        del made
    return min(taken) * 1e3, num_blocks


async def crossing_ms(asked: Submission, rounds: int) -> float:
    """Of both ends of a socket together: written, sent, received and read."""
    ours, theirs = socket.socketpair()
    arrived, taken = asyncio.Event(), list[float]()

    def received(payload: bytes) -> None:
        assert decoded(payload, ToChild).submission.max_new_tokens == asked.max_new_tokens
        arrived.set()

    sender = Channel(ours, lambda _: None, lambda _: None)
    receiver = Channel(theirs, received, lambda _: None)
    for _ in range(rounds):
        arrived.clear()
        began_s = time.thread_time()
        sender.send(encoded(Submit(asked)))
        await arrived.wait()
        taken.append(time.thread_time() - began_s)
    sender.close()
    receiver.close()
    return min(taken) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    draw = random.Random(1)
    ids = tuple(draw.randrange(150_000) for _ in range(options.tokens))
    asked = Submission(
        id=RequestId("a"),
        model=ModelId("m"),
        prompt=EncodedPrompt.of_text(ids),
        sampling=SamplingParams(),
        seed=1,
        max_new_tokens=1,
    )
    plain, sent = encoded(ids), encoded(Submit(asked))

    def read() -> Submission:
        return decoded(sent, ToChild).submission

    assert read() == asked
    ways: dict[str, Callable[[], object]] = {
        "made a row": lambda: EncodedPrompt.of_text(ids),
        "written as a list": lambda: encoded(ids),
        "written as one row": lambda: encoded(Submit(asked)),
        "read from a list": lambda: decoded(plain, tuple[int, ...]),
        "read from one row": read,
        "hashed": lambda: BlockChain(Namespace(b"bench"), BLOCK, asked.prompt.content),
    }
    for name, work in ways.items():
        taken_ms, num_blocks = measured(work, options.rounds)
        print(f"{name:20} {taken_ms:6.2f} ms {num_blocks:8,} blocks")
    print(f"{'crossed a socket':20} {asyncio.run(crossing_ms(asked, options.rounds)):6.2f} ms")


if __name__ == "__main__":
    main()
