"""Many long prompts at once on a server with little memory: the outcome of each, and how near it came to its limit.

    python -m bench.memory.limit [--memory 215MiB] [--prompts 100] [--tokens 1500] [--layout attention]
        [--address-space 4GiB] [--bursts 1] [--json FILE]

A process of its own serves the embedded model, or with `--layout` a tiny one with a context of 131,072 tokens, which is
sent one prompt in ten that is ten times as long. With `--address-space` the system gives it no more address space
(RLIMIT_AS). The baseline is the same process before the first prompt. Each of `--bursts` sends as many prompts, none of
them twice, and is reported with the outcomes and the anonymous memory when its last prompt was answered.
"""

import argparse
import asyncio
import json
import re
import resource
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from adapters.huggingface.model_folder import EMBEDDED_IDS
from bench.common.long_context_models import LONG_CONTEXT, write_long_context_model
from domain.byte_size import ByteSize
from tests.support.processes.cli_process import ROOT, command, environment

LONG_EVERY, LONGER = 10, 10
"""With a long context one prompt in so many is so many times as long."""
SAMPLE_S = 0.005
MIB = 1 << 20


class Watch:
    """The most memory that a process held since this began, sampled every few milliseconds."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._has_ended = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def resident_bytes(self) -> int:
        return int(self._file.read_text().split()[1]) * resource.getpagesize()

    def anonymous_bytes(self) -> int:
        """Resident, and no page of a file: what only the process itself can give back."""
        resident, of_files = map(int, self._file.read_text().split()[1:3])
        return (resident - of_files) * resource.getpagesize()

    def end(self) -> None:
        self._has_ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._has_ended.wait(SAMPLE_S):
            try:
                self.peak_bytes = max(self.peak_bytes, self.resident_bytes())
            except OSError:
                return


async def ask_all(url: str, lengths: Sequence[int], num_bursts: int, watch: Watch) -> list[dict[str, Any]]:
    """Returns the outcomes of each burst, and the anonymous MiB after it."""
    random = Random(7)
    async with httpx.AsyncClient(timeout=3600, limits=httpx.Limits(max_connections=len(lengths))) as client:

        async def ask(num_tokens: int) -> str:
            prompt = [random.randrange(10, 4000) for _ in range(num_tokens)]
            body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
            answer = await client.post(f"{url}/v1/completions", json=body)
            return "answered" if answer.status_code == 200 else str(answer.json()["error"]["code"])

        bursts: list[dict[str, Any]] = []
        for _ in range(num_bursts):
            outcomes = Counter(await asyncio.gather(*map(ask, lengths)))
            bursts.append({"outcomes": dict(outcomes), "anonymous_mib": watch.anonymous_bytes() / MIB})
        return bursts


def prompt_lengths(num_prompts: int, num_tokens: int, *, has_long: bool) -> list[int]:
    random = Random(8)
    lengths = [num_tokens + random.randrange(num_tokens // 4) for _ in range(num_prompts)]
    return [n * LONGER if has_long and at % LONG_EVERY == 0 else n for at, n in enumerate(lengths)]


def run(options: argparse.Namespace, model: str, lengths: Sequence[int], home: Path) -> dict[str, Any]:
    limit = ByteSize.parse(options.memory).num_bytes
    space = ByteSize.parse(options.address_space).num_bytes if options.address_space else None
    assert limit is not None, "--memory is a number of bytes"

    def bound() -> None:
        if space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (space, space))

    arguments = command("serve", model, "--port", "0", "--memory", options.memory, "--store", "off")
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment(home), stdout=subprocess.PIPE, text=True, preexec_fn=bound
    ) as server:
        assert server.stdout is not None
        served = next((found for line in server.stdout if (found := re.search(r"at (http://\S+)/v1", line))), None)
        assert served is not None, "the server did not start"
        threading.Thread(target=server.stdout.read, daemon=True).start()
        watch = Watch(server.pid)
        before = watch.resident_bytes()
        bursts = asyncio.run(ask_all(served[1], lengths, options.bursts, watch))
        after = watch.resident_bytes()
        watch.end()
        server.send_signal(signal.SIGTERM)
    return {
        "tokens": sum(lengths),
        "exit": server.returncode,
        "before_mib": before / MIB,
        "peak_mib": watch.peak_bytes / MIB,
        "after_mib": after / MIB,
        "bursts": bursts,
        "limit_mib": limit / MIB,
        "peak_share": watch.peak_bytes / limit,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="215MiB")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--layout", choices=sorted(LONG_CONTEXT))
    parser.add_argument("--address-space")
    parser.add_argument("--bursts", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    lengths = prompt_lengths(options.prompts, options.tokens, has_long=options.layout is not None)
    with TemporaryDirectory() as home:
        folder = Path(home) / "long"
        model = str(write_long_context_model(options.layout, folder)) if options.layout else EMBEDDED_IDS[0]
        text = json.dumps(run(options, model, lengths, Path(home)), indent=2)
    if options.json is not None:
        options.json.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
