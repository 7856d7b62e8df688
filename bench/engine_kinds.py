"""The engine in a process of its own against the engine on a thread: two servers on one model, asked in turns.

    python -m bench.engine_kinds [--model DIR] [--streams 1 4 8] [--tokens 64] [--rounds 5] [--prompt 600]

Of each round, whose order alternates: tokens a second over all streams while all of them run; milliseconds to the first
token of a prompt that was just asked, by one client alone; and processor time a token, of the server with its child.
Told: medians, and the median over the rounds of the ratio process to thread, with its quartiles. The baseline is the
thread of the same round. On a machine that others use, only the processor time says something.
"""

import argparse
import json
import statistics
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.http_client import measure
from bench.serve import completion, text_of, together
from bench.servers import ServerProcess

THREAD, PROCESS = "thread", "process"
WORDS_A_TOKEN = 0.1
"""Of `text_of`, about."""


class Side:
    """A server with one kind of engine."""

    def __init__(self, kind: str, model: str, folder: Path) -> None:
        folder.mkdir()
        arguments = ["interfaces.cli", "serve", model, "--engine", kind, "--store", str(folder / "store")]
        self.server = ServerProcess(arguments, "/health/ready", folder / "log")
        self._model = model

    def decode(self, num_streams: int, num_tokens: int, start: int) -> dict[str, float]:
        requests = [
            completion(text_of(6, start=start + 100 * number), num_tokens, self._model) for number in range(num_streams)
        ]
        for asked in requests:
            asked["body"] = asked["body"] | {"ignore_eos": True}
        known = [{**asked, "body": asked["body"] | {"max_tokens": 1}} for asked in requests]
        measure(self.server.url, known)  # so that all begin to decode at once
        before_s = self.server.cpu_s(with_children=True)
        timelines = measure(self.server.url, requests)
        cpu_s = self.server.cpu_s(with_children=True) - before_s
        return {
            f"{num_streams} streams: tokens/s": together(timelines),
            f"{num_streams} streams: CPU ms a token": cpu_s * 1e3 / (num_streams * num_tokens),
        }

    def repeat(self, num_tokens: int, start: int) -> dict[str, float]:
        asked = completion(text_of(int(num_tokens * WORDS_A_TOKEN), start=start), 4, self._model)
        measure(self.server.url, [asked])
        before_s = self.server.cpu_s(with_children=True)
        (again,) = measure(self.server.url, [asked])
        if again.status != 200 or again.error:
            raise RuntimeError(f"{again.status} {again.error}")
        return {
            "repeat: ms to first token": again.ttft_s * 1e3,
            "repeat: CPU ms": (self.server.cpu_s(with_children=True) - before_s) * 1e3,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cairn-demo")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=600, help="about so many tokens, asked twice")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: {THREAD: [], PROCESS: []})
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        sides = {kind: Side(kind, options.model, scratch / kind) for kind in (THREAD, PROCESS)}
        for side in sides.values():
            stack.enter_context(side.server)
        for number in range(-1, options.rounds):  # the first round is for what is compiled and grown once
            start = 10_000 * (number + 2)
            for kind in (THREAD, PROCESS) if number % 2 else (PROCESS, THREAD):
                figures = sides[kind].repeat(options.prompt, start)
                for num_streams in options.streams:
                    figures |= sides[kind].decode(num_streams, options.tokens, start + 1_000 * num_streams)
                print(f"round {number} {kind}: {', '.join(f'{value:.1f}' for value in figures.values())}", flush=True)
                for name, value in figures.items():
                    if number >= 0:
                        found[name][kind].append(value)
    results = {name: summed_up(by_kind) for name, by_kind in found.items()}
    print(f"{'':32} {THREAD:>9} {PROCESS:>9}  ratio (quartiles)")
    for name, told in results.items():
        ratio = f"{told['ratio']:.2f} ({told['low']:.2f} to {told['high']:.2f})"
        print(f"{name:32} {told[THREAD]:9.2f} {told[PROCESS]:9.2f}  {ratio}")
    if options.json:
        options.json.write_text(json.dumps({"rounds": found, "results": results}, indent=1))


def summed_up(by_kind: dict[str, list[float]]) -> dict[str, float]:
    ratios = [apart / here for apart, here in zip(by_kind[PROCESS], by_kind[THREAD], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    medians = {kind: statistics.median(values) for kind, values in by_kind.items()}
    return {**medians, "ratio": statistics.median(ratios), "low": low, "high": high}


if __name__ == "__main__":
    main()
