"""Decoding over HTTP against the bare loop on the same weights, each in a process of its own, in turns.

    python -m bench.streams --model DIR [--streams 1 8 32] [--tokens 128] [--rounds 3] [--serve "--engine thread" ...]

Each `--serve` is one server with these arguments. Told: the median step while all streams run, and the median over
the rounds of its ratio to the bare loop (the network, its batch caches and an argmax, without a server) in that round.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from adapters.system.blas import load_blas
from application.services.token_side.model_loads import whole

load_blas()

from adapters.mlx.assembly import assemble  # noqa: E402 - a BLAS only counts when it is there before MLX
from adapters.mlx.loader import load_folder  # noqa: E402
from adapters.mlx.weights_digest import Digests  # noqa: E402
from bench.decode import bare_loop, prompt_of  # noqa: E402
from bench.http_client import Timeline, measure  # noqa: E402
from bench.serve import PROMPT_TOKENS, completion, text_of  # noqa: E402
from bench.servers import ServerProcess  # noqa: E402
from domain.ids import ModelId  # noqa: E402


class Bare:
    """The loop without a server, in this process."""

    def __init__(self, folder: Path) -> None:
        self._network, facts = whole(load_folder(folder, "auto", Digests(b"")))
        self._vocab_size = whole(assemble(self._network, ModelId(folder.name), facts)).description.vocab_size

    def step_s(self, num_streams: int, num_tokens: int) -> float:
        prompts = [prompt_of(PROMPT_TOKENS, index, self._vocab_size) for index in range(num_streams)]
        return statistics.median(bare_loop(self._network, prompts, num_tokens))


class Served:
    """A server. Prompts differ each time, so that nothing is reused."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        self._server = server
        self._model = model
        self._num_asked = 0

    def step_s(self, num_streams: int, num_tokens: int) -> float:
        requests: list[dict[str, object]] = []
        for _ in range(num_streams):
            self._num_asked += 1
            asked = completion(text_of(6, start=1000 * self._num_asked), num_tokens, self._model)
            # No end: random weights may choose one at any step, and who ends early would leave the others alone.
            asked["body"] = asked["body"] | {"ignore_eos": True}
            requests.append(asked)
        return median_step_s(measure(self._server.url, requests))


def median_step_s(timelines: Sequence[Timeline]) -> float:
    """Between two tokens of a stream while all streams run: the median over streams of the mean of each, because a
    chunk may hold two tokens."""
    for timeline in timelines:
        if timeline.error or timeline.status != 200:
            raise RuntimeError(f"a stream failed: {timeline.status} {timeline.error}")
    start = max(timeline.first_token_s for timeline in timelines)
    end = min(timeline.token_s[-1] for timeline in timelines)
    steps: list[float] = []
    for timeline in timelines:
        within = [at for at in timeline.token_s if start < at <= end]
        per_chunk = timeline.usage["completion_tokens"] / len(timeline.token_s)
        steps.append((within[-1] - within[0]) / ((len(within) - 1) * per_chunk))
    return statistics.median(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--serve", action="append", help="arguments of one server (default: one with none)")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        sides: dict[str, Bare | Served] = {"bare loop": Bare(options.model)}
        for index, given in enumerate(options.serve or [""]):
            folder = scratch / str(index)
            folder.mkdir()
            arguments = [
                "interfaces.cli",
                "serve",
                str(options.model),
                "--store",
                str(folder / "store"),
                *given.split(),
            ]
            server = stack.enter_context(ServerProcess(arguments, "/health/ready", folder / "log"))
            sides[f"serve {given}".strip()] = Served(server, str(options.model))
        for num_streams in options.streams:
            for side in sides.values():
                side.step_s(num_streams, 16)  # kernels are compiled by shape
            rounds = [
                {name: side.step_s(num_streams, options.tokens) for name, side in sides.items()}
                for _ in range(options.rounds)
            ]
            for name in sides:
                step_s = statistics.median(one[name] for one in rounds)
                speed = statistics.median(one["bare loop"] / one[name] for one in rounds)
                results[f"{num_streams} streams, {name}"] = {"step_s": step_s, "speed": speed}
                print(
                    f"{num_streams:3d} streams  {name:24s} {step_s * 1e3:8.2f} ms a step  speed {speed:.2f}", flush=True
                )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
