"""Prompts of which hardly two are as long, from several clients, for minutes: what fails, and what is held by then.

    python -m bench.many_lengths [--model DIR | --shape qwen3-4b] [--clients 8] [--seconds 120] [--tokens 1500]
        [--dir DIR] [--json FILE]

What a backend keeps for a shape (plans, graphs, compiled functions) it keeps for each shape, and here every prompt, and
every group of rows that decode, is another. A client asks anew when it is answered: up to `--tokens` tokens of which
half are another's, and up to 24 back; one in eight leaves before its end. Told every few seconds: answers, lengths,
failures, resident memory of the server with its engine's process, and with --json what the server counts itself. There
is no baseline: what grows is seen beside the sample before. The exit status is 1 where an answer failed.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections import Counter
from pathlib import Path
from typing import Any

from bench.http_client import stream
from bench.long_context import scratch_folder, sums, wordy
from bench.model_folder import made
from bench.results import Results
from bench.servers import ServerProcess
from interfaces.cli.bench.prompts import words

CHAT = "/v1/chat/completions"
SAMPLE_S = 5.0
MOST_NEW = 24
TOKENS_A_WORD = 9
LEAVES_ONE_IN = 8
NUM_OPENINGS = 6
HELD = ("cairn_memory_used_bytes", "cairn_compute_memory")


class Clients:
    """`answers`, `failures` by what was said, `lengths` of prompts."""

    def __init__(self, url: str, options: argparse.Namespace) -> None:
        self._url, self._options, self._until = url, options, time.monotonic() + options.seconds
        self._bias = wordy(options.model)
        self.answers = 0
        self.failures: Counter[str] = Counter()
        self.lengths: set[int] = set()
        self.ttft_s: list[float] = []

    async def run(self) -> None:
        await asyncio.gather(*(self._client(number) for number in range(self._options.clients)))

    async def _client(self, number: int) -> None:
        choose = random.Random(number)
        while time.monotonic() < self._until:
            leaves = not choose.randrange(LEAVES_ONE_IN)
            body = self._body(choose)
            try:
                told = await stream(self._url, CHAT, body, choose.uniform(0.0, 0.3) if leaves else None)
            except OSError as error:
                self.failures[repr(error)] += 1
                await asyncio.sleep(0.2)
                continue
            if told.error not in ("", "left"):
                self.failures[told.error[:160]] += 1
            elif not told.error:
                self.answers += 1
                self.lengths.add(told.num_prompt or 0)
                self.ttft_s.append(told.ttft_s)

    def _body(self, choose: random.Random) -> dict[str, Any]:
        most = self._options.tokens // TOKENS_A_WORD // 2
        opening = words(choose.randrange(NUM_OPENINGS), choose.randint(1, most))
        question = words(choose.randrange(1 << 30), choose.randint(1, most)) + " ?" * choose.randrange(TOKENS_A_WORD)
        return {
            "model": str(self._options.model),
            "messages": [{"role": "system", "content": opening}, {"role": "user", "content": question}],
            "max_tokens": choose.randint(1, MOST_NEW),
            "temperature": choose.choice((0.0, 0.8)),
            "logit_bias": self._bias,
            "stream": True,
            "stream_options": {"include_usage": True},
        }


def resident_bytes(server: ServerProcess) -> int:
    """Of all its processes."""
    return sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in server.pids()) * 4096


async def watch(server: ServerProcess, clients: Clients, results: Results, started: float) -> None:
    while True:
        await asyncio.sleep(SAMPLE_S)
        held = await asyncio.to_thread(sums, server.url)
        counted = {name: value for name, value in held.items() if name.startswith(HELD)}
        figures = {
            "resident_bytes": resident_bytes(server),
            "answers": clients.answers,
            "lengths": len(clients.lengths),
        }
        results.add(
            "sample", at_s=time.monotonic() - started, failures=clients.failures.total(), **figures, held=counted
        )
        mib = figures["resident_bytes"] / (1 << 20)
        told = (
            f"{clients.answers:>6,} answers, {len(clients.lengths):>5,} lengths, {clients.failures.total():>4,} failed"
        )
        print(f"{time.monotonic() - started:>6.0f} s {told}, {mib:,.0f} MiB resident", flush=True)


async def soak(server: ServerProcess, options: argparse.Namespace, results: Results) -> Clients:
    clients, started = Clients(server.url, options), time.monotonic()
    watching = asyncio.create_task(watch(server, clients, results, started))
    await clients.run()
    watching.cancel()
    return clients


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny", help="of bench.shapes")
    parser.add_argument("--model", type=Path, help="a folder that bench.model_folder made, instead of --shape")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--tokens", type=int, default=1500, help="of a prompt, at most")
    parser.add_argument("--dir", type=Path, help="for weights and stores; default: the temporary folder")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "many_lengths")
    with scratch_folder(options.dir) as scratch:
        options.model = options.model or made(options.shape, scratch / "model")
        arguments = ["interfaces.cli", "serve", str(options.model), "--store", str(scratch / "store")]
        with ServerProcess(arguments, "/health/ready", scratch / "log") as server:
            clients = asyncio.run(soak(server, options, results))
    ttft_ms = statistics.median(clients.ttft_s) * 1e3 if clients.ttft_s else None
    results.add("done", answers=clients.answers, failures=dict(clients.failures), ttft_ms=ttft_ms)
    for message, count in clients.failures.most_common(5):
        print(f"{count:>6,} times {message}")
    if clients.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
