"""What a prompt costs on its way into an engine's process: encoded on the text side, read in the child.

    python -m bench.engine_messages [--tokens 200000] [--rounds 15]

Least milliseconds of processor time of all rounds. The baseline of the same run is msgpack's own list of integers.
"""

import argparse
import random
import time
from collections.abc import Callable

from adapters.engine_process.messages import Submit, ToChild
from adapters.engine_process.values import PackedSubmission, decoded, encoded
from application.ports.engine import Submission
from domain.ids import ModelId, RequestId
from domain.prompt_content import EncodedPrompt
from domain.sampling import SamplingParams


def least_ms(work: Callable[[], object], rounds: int) -> float:
    taken: list[float] = []
    for _ in range(rounds):
        began_s = time.thread_time()
        work()
        taken.append(time.thread_time() - began_s)
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
    plain, sent = encoded(ids), encoded(Submit(PackedSubmission.of(asked)))

    def read() -> Submission:
        message = decoded(sent, ToChild)
        return message.submission.unpacked()

    assert read() == asked
    ways: dict[str, Callable[[], object]] = {
        "written as a list": lambda: encoded(ids),
        "written as one row": lambda: encoded(Submit(PackedSubmission.of(asked))),
        "read from a list": lambda: decoded(plain, tuple[int, ...]),
        "read from one row": read,
    }
    for name, work in ways.items():
        print(f"{name:20} {least_ms(work, options.rounds):6.2f} ms")


if __name__ == "__main__":
    main()
