"""Many streams of one long prompt at once, over HTTP: whether all are answered, and what is held beside the ledger.

    python -m bench.memory.crowd --model DIR | --shape NAME [--streams 32] [--tokens 8000] [--new 64] [--rounds 2]
        [--serve "--memory auto"] [--json FILE]

Twice, each time with another prompt. `used_bytes` is the most that the ledger said while they ran, sampled from
/v1/cache/stats, and `reading_bytes` the most that was in fact in use in the same samples; its ratio to `used_bytes` is
reported, and both beside `hard_bytes`, the limit. `device_bytes` is the driver's reading, if there is one, of what the
whole device held more than before the server: freed buffers and CUDA's own are in it.
"""

import argparse
import subprocess
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.common.results import Results
from bench.common.servers import ServerProcess
from bench.http_client import measure
from bench.long_context import stats
from bench.model_folder import made
from bench.serve import PLAIN_TEXT

SAMPLE_S = 0.2
FIRST_ID, NUM_IDS = 300, 1700


class Watch:
    """While it is entered: the most of each figure, in a thread of its own."""

    def __init__(self, url: str, device_before: int | None) -> None:
        self._url, self._device_before = url, device_before
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.most: dict[str, float] = {}
        self.num_samples = 0

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._has_ended.wait(SAMPLE_S):
            memory = stats(self._url).get("memory") or {}
            found = {"used_bytes": memory.get("used_bytes"), "reading_bytes": memory.get("held", {}).get("reading")}
            found["hard_bytes"] = (memory.get("limits") or {}).get("hard_bytes")
            if self._device_before is not None and (now := device_bytes()) is not None:
                found["device_bytes"] = now - self._device_before
            self.num_samples += bool(memory)
            for name, value in found.items():
                if value is not None:
                    self.most[name] = max(value, self.most.get(name, 0))


def device_bytes() -> int | None:
    """Bytes in use on the first NVIDIA device, by all processes; None if they cannot be read."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=5, check=True).stdout
        return int(told.split()[0]) << 20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def round_of(url: str, device_before: int | None, options: argparse.Namespace, number: int) -> dict[str, Any]:
    prompt = [FIRST_ID + (index * 7919 + number * 104_729) % NUM_IDS for index in range(options.tokens)]
    body = {
        "model": str(options.model),
        "prompt": prompt,
        "max_tokens": options.new,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
        "logit_bias": PLAIN_TEXT,
    }
    started = time.monotonic()
    with Watch(url, device_before) as watch:
        timelines = measure(url, [{"path": "/v1/completions", "body": body}] * options.streams)
    taken_s = time.monotonic() - started
    errors = sorted({f"{line.status} {line.error}" for line in timelines if line.error or line.status != 200})
    whole = [line for line in timelines if not line.error and line.num_output == options.new]
    used, reading = watch.most.get("used_bytes"), watch.most.get("reading_bytes")
    return {
        "streams": options.streams,
        "answered": len(whole),
        "share": len(whole) / options.streams,
        "s": taken_s,
        "last_first_token_s": max((line.ttft_s for line in whole), default=None),
        "errors": errors[:3],
        "samples": watch.num_samples,
        "reading_over_used": reading / used if used and reading else None,
        **watch.most,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--model", type=Path)
    model.add_argument("--shape", help="of bench.common.shapes, written to the temporary folder")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--serve", default="", help="arguments of the server")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "crowd")
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        options.model = options.model or made(options.shape, scratch / "model")
        before = device_bytes()
        arguments = ["interfaces.cli", "serve", str(options.model), "--store", str(scratch / "store")]
        server = ServerProcess([*arguments, *options.serve.split()], "/health/ready", scratch / "log")
        stack.enter_context(server)
        for number in range(options.rounds):
            found = round_of(server.url, before, options, number)
            results.add("crowd", round=number, **found)
            for name, value in found.items():
                print(f"{name:>20} {value / 2**20 if name.endswith('_bytes') else value}", flush=True)


if __name__ == "__main__":
    main()
