"""Who waits for whom while prompts prefill, over HTTP: a question behind a long prompt, eight at once, streams.

    python -m bench.fairness [--model DIR] [--long 3000] [--json FILE]

Baselines of the same run: the same request on an idle server, the longest chunk, the streams' rate without a prompt.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from application.events import PrefillChunkComputed
from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from bench.event_log import EventLog
from bench.http_client import measure
from bench.servers import cairn_in_process
from interfaces.cli.bench.client import Timeline

SHORT = 20
MIXED = (20, 60, 100, 200, 500, 1000, 1500, 2000)
NUM_STREAMS = 2
REPEATS = 2


class Fairness:
    """Every prompt is new, so that nothing is reused. `log`: tells how long chunks took."""

    def __init__(self, url: str, model: str, log: EventLog) -> None:
        self._url, self._model, self._log = url, model, log
        self._random = Random(5)

    def question_behind(self, num_long: int) -> dict[str, float]:
        """Milliseconds to the first token of 20 tokens: alone, and sent while a long prompt is computed."""
        alone = [self._measure([self._request(SHORT)])[0].ttft_s for _ in range(REPEATS)]
        waited, longs = list[float](), list[float]()
        self._log.events.clear()
        for index in range(REPEATS):
            offset_s = 0.3 + 0.1 * index
            long, short = self._measure([self._request(num_long), self._request(SHORT, at_s=offset_s)])
            waited.append(short.ttft_s)
            longs.append(long.ttft_s)
        return {
            "alone_ms": 1e3 * statistics.median(alone),
            "behind_ms": 1e3 * statistics.median(waited),
            "longest_behind_ms": 1e3 * max(waited),
            "chunk_ms": 1e3 * self._chunk_s(),
            "long_ms": 1e3 * statistics.median(longs),
        }

    def mixed(self) -> dict[str, float]:
        """Milliseconds to the first token of eight prompts sent at once, by length; and their mean."""
        lengths = list(MIXED)
        self._random.shuffle(lengths)
        timelines = self._measure([self._request(length) for length in lengths])
        by_length = {length: 1e3 * line.ttft_s for length, line in zip(lengths, timelines, strict=True)}
        told = {f"{length}_tokens_ms": by_length[length] for length in sorted(by_length)}
        return {**told, "mean_ms": statistics.mean(by_length.values())}

    def running(self, num_long: int) -> dict[str, float]:
        """Tokens a second of each running stream without and beside a long prompt, and the longest gap beside it."""
        streams = [self._request(SHORT, max_tokens=200) for _ in range(NUM_STREAMS)]
        *running, long = self._measure([*streams, self._request(num_long, at_s=1.0)])
        alone = self._measure([self._request(SHORT, max_tokens=60) for _ in range(NUM_STREAMS)])
        start, end = long.sent_s, long.first_token_s
        rates = [sum(start < at <= end for at in line.token_s) / (end - start) for line in running]
        gaps = [gap for line in running for gap in _gaps(line, start, end)]
        free = [(len(line.token_s) - 1) / (line.token_s[-1] - line.token_s[0]) for line in alone]
        return {
            "free_tokens_per_s": statistics.mean(free),
            "beside_tokens_per_s": statistics.mean(rates),
            "share": statistics.mean(rates) / statistics.mean(free),
            "longest_gap_ms": 1e3 * max(gaps, default=0.0),
            "prompt_ms": 1e3 * long.ttft_s,
        }

    def _measure(self, requests: list[dict[str, Any]]) -> list[Timeline]:
        timelines = measure(self._url, requests)
        for timeline in timelines:
            if timeline.error or timeline.status != 200 or not timeline.token_s:
                raise RuntimeError(f"a stream failed: {timeline.status} {timeline.error}")
        return timelines

    def _request(self, num_tokens: int, max_tokens: int = 4, at_s: float = 0.0) -> dict[str, Any]:
        body = {
            "model": self._model,
            "prompt": [self._random.randrange(300, 2000) for _ in range(num_tokens)],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
            "logit_bias": {str(id): -100 for id in range(10)},
        }
        return {"path": "/v1/completions", "body": body, "at_s": at_s}

    def _chunk_s(self) -> float:
        chunks = [event for event in self._log.events if isinstance(event, PrefillChunkComputed)]
        return statistics.median(
            (event.at_ns - event.started_ns) / 1e9 for event in chunks if event.end - event.start > 256
        )


def _gaps(line: Timeline, start: float, end: float) -> list[float]:
    times = [at for at in line.token_s if start <= at <= end]
    return [after - before for before, after in pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="adapters/huggingface/embedded/cairn-demo")
    parser.add_argument("--long", type=int, default=3000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    from adapters.system.blas import load_blas

    load_blas()
    log = EventLog()
    with TemporaryDirectory() as store:
        settings = Settings(
            server=ServerSettings(port=0), model=ModelSettings(default=options.model), store=StoreSettings(dir=store)
        )
        with cairn_in_process(settings, log) as url:
            bench = Fairness(url, options.model, log)
            bench.question_behind(600)  # the first requests of a process compile kernels
            parts: dict[str, Callable[[], dict[str, float]]] = {
                "question": lambda: bench.question_behind(options.long),
                "mixed": bench.mixed,
                "running": lambda: bench.running(options.long),
            }
            result: dict[str, dict[str, float]] = {}
            for name, part in parts.items():
                result[name] = part()
                print(name)
                for key, value in result[name].items():
                    print(f"    {key:<22} {value:>10.2f}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
