"""Decoding over HTTP against the bare loop on the same weights, each in a process of its own, in turns.

    python -m bench.streams --model DIR | --shape NAME [--streams 1 8 32] [--prompt 60 2000] [--tokens 128] [--rounds 3]
        [--serve "--max-batch 8" ...] [--seconds 240] [--json FILE]

Each `--serve` is one server with these arguments, and room for as many streams as asked. Reported: the mean step while
all streams run, and the median over the rounds of its ratio to the bare loop in that round; who goes first changes from
round to round, after a shorter round that does not count. `best`: of each side's quickest round, since whatever else
the machine does only ever slows one. The bare loop is the network, its batch caches and an argmax, read back once a
step and a step late, without a server.

`--prompt`: its tokens a prompt, and about the servers', one length after the other; of its rows each is a token shorter
than the one before, for a server's are never of one length. They compute the same and a bias for ten tokens more
(`PLAIN_TEXT`), since a token that shows no text would not be seen to arrive. A server is asked each prompt before, for
one token: so all begin to decode nearly at once. `--seconds` bounds the rounds, and each number of streams has its
share: two rounds at least. A server that fails is left out and reported, also by the status.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from adapters.system.blas import load_blas
from tests.support.engines.finish_load import finish_load

load_blas()

from adapters.mlx.loading.assembly import assemble  # noqa: E402 - a BLAS only counts when it is there before MLX
from adapters.mlx.loading.network import load_folder  # noqa: E402
from adapters.mlx.loading.weights_digest import Digests  # noqa: E402
from bench.common.results import Results  # noqa: E402
from bench.common.servers import ServerProcess  # noqa: E402
from bench.decode import bare_loop, prompt_of  # noqa: E402
from bench.http_client import Timeline, measure  # noqa: E402
from bench.model_folder import made  # noqa: E402
from bench.serve import PROMPT_TOKENS, completion, text_of  # noqa: E402
from domain.ids import ModelId  # noqa: E402
from domain.models.model_card import LoadOptions  # noqa: E402

BARE = "bare loop"
WARM_UP_TOKENS = 16
WORD_TOKENS = 10
"""Tokens of the sentence that `text_of` repeats."""


class Bare:
    """The loop without a server, in this process."""

    def __init__(self, folder: Path) -> None:
        self.prompt_tokens = PROMPT_TOKENS
        self._network, facts = finish_load(load_folder(folder, LoadOptions(), Digests(b"")))
        self.description = finish_load(assemble(self._network, ModelId(folder.name), facts)).description

    def step_s(self, num_streams: int, num_tokens: int) -> float:
        num_tokens += 2 * num_streams  # as the servers' streams
        lengths = [max(2, self.prompt_tokens - index) for index in range(num_streams)]
        prompts = [prompt_of(length, index, self.description.vocab_size) for index, length in enumerate(lengths)]
        # The mean, as `mean_step_s` has it: a median leaves out whatever interrupts.
        return statistics.mean(bare_loop(self._network, prompts, num_tokens))


class Served:
    """A server. Prompts differ each time, and a stream has two tokens more for each that joins after it."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        self.prompt_tokens = PROMPT_TOKENS
        self._server = server
        self._model = model
        self._num_asked = 0

    def step_s(self, num_streams: int, num_tokens: int) -> float:
        requests: list[dict[str, Any]] = []
        for _ in range(num_streams):
            self._num_asked += 1
            asked = completion(self._text(), num_tokens + 2 * num_streams, self._model)
            # No end: random weights may choose one at any step, and who ends early would leave the others alone.
            asked["body"] = asked["body"] | {"ignore_eos": True}
            requests.append(asked)
        measure(self._server.url, [one | {"body": one["body"] | {"max_tokens": 1}} for one in requests])
        return mean_step_s(measure(self._server.url, requests))

    def _text(self) -> str:
        return text_of(max(1, self.prompt_tokens // WORD_TOKENS), start=1000 * self._num_asked)


class HardlyTogether(RuntimeError):
    """Streams that were to run at the same time did not."""


def mean_step_s(timelines: Sequence[Timeline]) -> float:
    """Between two tokens of a stream while all streams run: the median over streams of the mean of each, because a
    chunk may hold two tokens. Raises RuntimeError where a stream failed, or they hardly ran together."""
    for timeline in timelines:
        if timeline.error or timeline.status != 200 or not timeline.token_s:
            raise RuntimeError(f"a stream failed: {timeline.status} {timeline.error}")
    start = max(timeline.first_token_s for timeline in timelines)
    end = min(timeline.token_s[-1] for timeline in timelines)
    steps: list[float] = []
    for timeline in timelines:
        within = [at for at in timeline.token_s if start < at <= end]
        if len(within) < 2:
            raise HardlyTogether("the streams hardly ran at the same time")
        per_chunk = timeline.usage["completion_tokens"] / len(timeline.token_s)
        steps.append((within[-1] - within[0]) / ((len(within) - 1) * per_chunk))
    return statistics.median(steps)


class Turns:
    """The sides that still run."""

    def __init__(self, sides: dict[str, Bare | Served], num_tokens: int, results: Results) -> None:
        self._sides, self._num_tokens, self._results = sides, num_tokens, results
        self.failures: list[str] = []

    def failed(self, side: str, error: RuntimeError) -> None:
        self.failures.append(f"{side}: {(str(error).strip() or repr(error)).splitlines()[-1]}")
        self._results.add("failed", side=side, error=str(error))
        print(f"{side}: {error}", flush=True)

    def run(self, num_streams: int, prompt_tokens: int, num_rounds: int, seconds: float) -> None:
        for side in self._sides.values():
            side.prompt_tokens = prompt_tokens
        self._round(num_streams, WARM_UP_TOKENS, 0)  # kernels are compiled by shape
        rounds: list[dict[str, float]] = []
        deadline_s = time.monotonic() + seconds
        while len(rounds) < num_rounds and (len(rounds) < 2 or time.monotonic() < deadline_s):
            rounds.append(self._round(num_streams, self._num_tokens, len(rounds)))
            self._results.add("round", streams=num_streams, prompt=prompt_tokens, step_s=rounds[-1])
        for name in self._sides:
            step_s = statistics.median(one[name] for one in rounds)
            speeds = [one[BARE] / one[name] for one in rounds]
            speed = statistics.median(speeds)
            best = min(one[BARE] for one in rounds) / min(one[name] for one in rounds)
            figures = {"step_s": step_s, "speed": speed, "lowest": min(speeds), "highest": max(speeds), "best": best}
            what: dict[str, Any] = {
                "streams": num_streams,
                "prompt": prompt_tokens,
                "side": name,
                "rounds": len(rounds),
            }
            self._results.add("streams", **what, **figures)
            print(
                f"{num_streams:3d} streams, {prompt_tokens:5,d} tokens  {name:24s} {step_s * 1e3:8.2f} ms a step"
                f"  speed {speed:.2f} ({min(speeds):.2f} to {max(speeds):.2f}), best {best:.2f}, {len(rounds)} rounds",
                flush=True,
            )

    def _round(self, num_streams: int, num_tokens: int, number: int) -> dict[str, float]:
        """A side that fails is left out from here on."""
        found: dict[str, float] = {}
        names = [*self._sides]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            try:
                found[name] = self._sides[name].step_s(num_streams, num_tokens)
            except RuntimeError as error:
                if name == BARE:
                    raise
                if isinstance(error, HardlyTogether) and num_tokens == WARM_UP_TOKENS:
                    continue
                self.failed(f"{name}, {num_streams} streams", error)
                del self._sides[name]
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", type=Path)
    model.add_argument("--shape", help="of bench.common.shapes, written to the temporary folder")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt", type=int, nargs="+", default=[PROMPT_TOKENS])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--serve", action="append", help="arguments of one server (default: one with none)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "streams")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        folder = options.model or made(options.shape, scratch / "model")
        bare = Bare(folder)
        results.add("model", dtype=bare.description.dtype, weight_bytes=bare.description.weight_bytes)
        sides: dict[str, Bare | Served] = {BARE: bare}
        turns = Turns(sides, options.tokens, results)
        for index, given in enumerate(options.serve or [""]):
            (own := scratch / str(index)).mkdir()
            arguments = ["interfaces.cli", "serve", str(folder), "--store", str(own / "store")]
            room = ["--max-batch", str(max(32, *options.streams))]
            server = ServerProcess([*arguments, *room, *given.split()], "/health/ready", own / "log")
            name = f"serve {given}".strip()
            try:
                stack.enter_context(server)
            except RuntimeError as error:
                turns.failed(name, error)
            else:
                sides[name] = Served(server, str(folder))
        deadline_s = time.monotonic() + options.seconds
        wanted = [(prompt_tokens, num_streams) for prompt_tokens in options.prompt for num_streams in options.streams]
        for at, (prompt_tokens, num_streams) in enumerate(wanted):
            share_s = (deadline_s - time.monotonic()) / (len(wanted) - at)
            turns.run(num_streams, prompt_tokens, options.rounds, share_s)
    if turns.failures:
        raise SystemExit("\n".join(turns.failures))


if __name__ == "__main__":
    main()
