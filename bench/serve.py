"""Serving, measured over HTTP in one run: throughput, latencies, the longest gap, and mlx_lm.server side by side.

    python -m bench.serve [--model DIR] [--tokens 128] [--json FILE]

Every figure is printed with the ratio to its named baseline.
"""

import argparse
import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from application.events import PrefillChunkComputed, RequestQueued, StepCompleted
from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from bench.common.event_log import EventLog
from bench.common.float32 import float32_copy
from bench.common.servers import ServerProcess, cairn_in_process, shared_blas
from bench.http_client import Timeline, decode_rate, measure

PROMPT_TOKENS = 60
"""About what `text_of(6)` has."""

PLAIN_TEXT = {str(id): -100 for id in range(10)}
"""Keeps the embedded models to text, on servers that know no `ignore_eos`: their first ten tokens are special."""


def completion(prompt: str, max_tokens: int, model: str) -> dict[str, Any]:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": PLAIN_TEXT,
    }
    return {"path": "/v1/completions", "body": body}


def text_of(num_words: int, start: int = 0) -> str:
    return " ".join(f"item {start + index} is here" for index in range(num_words))


def together(timelines: list[Timeline]) -> float:
    """Tokens a second over all streams while all of them run."""
    for timeline in timelines:
        if timeline.error or timeline.status != 200:
            raise RuntimeError(f"a stream failed: {timeline.status} {timeline.error}")
    if (rate := decode_rate(timelines)) is None:
        raise RuntimeError("the streams hardly ran at the same time")
    return rate


def throughput(url: str, model: str, tokens: int, repeats: int = 3) -> dict[int, float]:
    """Best of `repeats` by number of streams; prompts differ each time, so that nothing is reused."""
    best: dict[int, float] = {}
    serial = 0
    for _ in range(repeats):
        for streams in (1, 4, 8):
            requests = []
            for _ in range(streams):
                serial += 1
                requests.append(completion(text_of(6, start=1000 * serial), tokens, model))
            best[streams] = max(best.get(streams, 0.0), together(measure(url, requests)))
    return best


def latencies(url: str, model: str, log: EventLog) -> dict[str, float]:
    """Milliseconds, medians: request sent to queued in the engine, end of a step to its token at the client."""
    to_engine, to_socket = [], []
    for index in range(10):
        log.events.clear()
        timeline = measure(url, [completion(text_of(4, 50_000 + index * 100), 40, model)])[0]
        queued = next(event for event in log.events if isinstance(event, RequestQueued))
        to_engine.append(queued.at_ns / 1e6 - timeline.sent_s * 1e3)
        steps = [e.at_ns / 1e9 for e in log.events if isinstance(e, StepCompleted) and e.num_decode_tokens]
        for step_s, token_s in zip(reversed(steps), reversed(timeline.token_s), strict=False):
            to_socket.append((token_s - step_s) * 1e3)
    return {"request_to_engine_ms": statistics.median(to_engine), "token_to_client_ms": statistics.median(to_socket)}


def longest_gap(url: str, model: str, log: EventLog, num_prompt_words: int = 400) -> dict[str, float]:
    """A running stream's longest pause while a long prompt arrives, in chunk times (the goal is 1.5 at most)."""
    log.events.clear()
    long_prompt = completion(text_of(num_prompt_words, 900_000), 4, model) | {"at_s": 0.7}
    running, long = measure(url, [completion(text_of(4, 800_000), 400, model), long_prompt])
    chunks = [e for e in log.events if isinstance(e, PrefillChunkComputed) and e.end - e.start > 256]
    chunk_s = max((chunk.at_ns - chunk.started_ns) / 1e9 for chunk in chunks)
    return {
        "long_prompt_tokens": long.usage["prompt_tokens"],
        "chunk_ms": chunk_s * 1e3,
        "longest_gap_ms": max(running.gaps_s, default=0.0) * 1e3,
        "gap_in_chunks": running.longest_gap_s / chunk_s,
    }


def measure_cairn(
    settings: Settings, model: str, tokens: int, log: EventLog
) -> tuple[dict[str, Any], dict[int, float]]:
    """Latencies and the longest gap, and the throughput by number of streams."""
    with cairn_in_process(settings, log) as url:
        rates = throughput(url, model, tokens)
        return {"latency": latencies(url, model, log), "gap": longest_gap(url, model, log)}, rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="adapters/huggingface/embedded/cairn-demo")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    preload = shared_blas()
    from bench.decode import bare_rates

    copies = TemporaryDirectory()
    model = str(float32_copy(Path(options.model), Path(copies.name) / "model"))
    log = EventLog()
    server, default = ServerSettings(port=0), ModelSettings(default=model)
    with TemporaryDirectory() as store:
        settings = Settings(server=server, model=default, store=StoreSettings(dir=store))
        result, ours = measure_cairn(settings, model, options.tokens, log)
    bare = bare_rates(Path(model), (1, 4, 8), PROMPT_TOKENS, options.tokens)
    with TemporaryDirectory() as folder:
        arguments = ["mlx_lm", "server", "--model", model, "--log-level", "ERROR"]
        with ServerProcess(arguments, "/health", Path(folder) / "peer.log", environment=preload) as server:
            theirs = throughput(server.url, model, options.tokens)
    print(f"{'streams':>8} {'cairn tok/s':>12} {'bare loop':>12} {'ratio':>7} {'mlx_lm.server':>14} {'ratio':>7}")
    for streams, rate in ours.items():
        against_bare, against_peer = rate / bare[streams], rate / theirs[streams]
        print(
            f"{streams:>8} {rate:>12.1f} {bare[streams]:>12.1f} {against_bare:>7.2f}"
            f" {theirs[streams]:>14.1f} {against_peer:>7.2f}"
        )
    for name, value in (result["latency"] | result["gap"]).items():
        print(f"{name:>24}: {value:.2f}")
    if options.json:
        result |= {"cairn": ours, "bare": bare, "mlx_lm_server": theirs}
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
