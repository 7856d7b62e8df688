"""Many long prompts at once on a server with little memory: what becomes of them, and how near it came to its limit.

    python -m bench.memory_limit [--memory 215MiB] [--prompts 100] [--tokens 1500] [--layout attention]
        [--address-space 4GiB] [--cgroup SIZE] [--bursts 1] [--after SECONDS] [--json FILE]

A process of its own serves the embedded model, or with `--layout` a tiny one with a context of 131,072 tokens, which is
sent one prompt in ten that is ten times as long. With `--address-space` the system gives it no more address space
(RLIMIT_AS), with `--cgroup` it kills what holds more memory: that needs the right to make a group. The baseline is the
same process before the first prompt. Its level, of anonymous memory, is told before the first prompt, after one of a
single request (`warm`: what computing anything at all leaves for good), and at its highest; for each of `--bursts`, of
as many prompts each and never the same, when its last one was answered, after so many seconds without work, when part
of it are kept prefixes (`kept`: hot tier and live states), and as long again after these were cleared.
"""

import argparse
import asyncio
import json
import re
import resource
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any, TypedDict

import httpx

from adapters.huggingface.model_folder import EMBEDDED_IDS
from bench.long_context_models import LONG_CONTEXT, write_long_context_model
from bench.memory_group import MemoryGroup, memory_group
from domain.byte_size import ByteSize
from tests.support.processes.cli_process import ROOT, command, environment

LONG_EVERY, LONGER = 10, 10
"""With a long context one prompt in so many is so many times as long."""
SAMPLE_S = 0.005
AFTER_S = 60.0
MIB = 1 << 20


class Watch:
    """The most that a process held since it is watched, looked at every few milliseconds."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._has_ended = threading.Event()
        self.peak_bytes = self.peak_anonymous_bytes = 0
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
                self.peak_anonymous_bytes = max(self.peak_anonymous_bytes, self.anonymous_bytes())
            except OSError:
                return


class Burst(TypedDict):
    """What became of each prompt; and MiB, anonymous but for what the ledger says is kept."""

    outcomes: dict[str, int]
    answered: float
    after: float
    kept: float
    cleared: float


class Found(TypedDict):
    warm: float
    bursts: list[Burst]
    limit_bytes: int


async def ask_all(url: str, lengths: Sequence[int], num_bursts: int, watch: Watch, after_s: float) -> Found:
    random = Random(7)
    async with httpx.AsyncClient(timeout=3600, limits=httpx.Limits(max_connections=len(lengths))) as client:

        async def ask(num_tokens: int) -> str:
            prompt = [random.randrange(10, 4000) for _ in range(num_tokens)]
            body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
            answer = await client.post(f"{url}/v1/completions", json=body)
            return "answered" if answer.status_code == 200 else str(answer.json()["error"]["code"])

        async def rested() -> float:
            await asyncio.sleep(after_s)
            return watch.anonymous_bytes() / MIB

        async def clear() -> None:
            (await client.post(f"{url}/v1/cache/clear", json={})).raise_for_status()

        async def burst() -> Burst:
            told = Counter(await asyncio.gather(*map(ask, lengths)))
            answered, after = watch.anonymous_bytes() / MIB, await rested()
            held = (await client.get(f"{url}/v1/cache/stats")).json()["memory"]["held"]
            await clear()
            kept = (held["hot"] + held["live"]) / MIB
            return Burst(outcomes=dict(told), answered=answered, after=after, kept=kept, cleared=await rested())

        await ask(min(lengths))
        await clear()
        warm = await rested()
        bursts = [await burst() for _ in range(num_bursts)]
        limit = (await client.get(f"{url}/v1/cache/stats")).json()["memory"]["limits"]["total_bytes"]
        return Found(warm=warm, bursts=bursts, limit_bytes=limit)


def prompt_lengths(num_prompts: int, num_tokens: int, *, has_long: bool) -> list[int]:
    random = Random(8)
    lengths = [num_tokens + random.randrange(num_tokens // 4) for _ in range(num_prompts)]
    return [n * LONGER if has_long and at % LONG_EVERY == 0 else n for at, n in enumerate(lengths)]


def run(
    memory: str,
    model: str,
    lengths: Sequence[int],
    address_space: int | None,
    group: MemoryGroup | None,
    home: Path,
    num_bursts: int,
    after_s: float,
) -> dict[str, Any]:
    def bound() -> None:
        if address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        if group is not None:
            group.enter()

    arguments = command("serve", model, "--port", "0", "--memory", memory, "--store", "off")
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment(home), stdout=subprocess.PIPE, text=True, preexec_fn=bound
    ) as server:
        assert server.stdout is not None
        served = next((found for line in server.stdout if (found := re.search(r"at (http://\S+)/v1", line))), None)
        assert served is not None, "it did not come up"
        threading.Thread(target=server.stdout.read, daemon=True).start()
        watch = Watch(server.pid)
        before, before_anonymous = watch.resident_bytes(), watch.anonymous_bytes()
        found = asyncio.run(ask_all(served[1], lengths, num_bursts, watch, after_s))
        after = watch.resident_bytes()
        watch.end()
        server.send_signal(signal.SIGTERM)
    return {
        "tokens": sum(lengths),
        "exit": server.returncode,
        "before_mib": before / MIB,
        "peak_mib": watch.peak_bytes / MIB,
        "after_mib": after / MIB,
        "anonymous_mib": {
            "before": before_anonymous / MIB,
            "warm": found["warm"],
            "peak": watch.peak_anonymous_bytes / MIB,
            "bursts": found["bursts"],
        },
        "limit_mib": found["limit_bytes"] / MIB,
        "peak_share": watch.peak_bytes / found["limit_bytes"],
        **({"group": group.told()} if group is not None else {}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="215MiB")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--layout", choices=sorted(LONG_CONTEXT))
    parser.add_argument("--address-space")
    parser.add_argument("--cgroup")
    parser.add_argument("--bursts", type=int, default=1)
    parser.add_argument("--after", type=float, default=AFTER_S)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    space = ByteSize.parse(asked.address_space).num_bytes if asked.address_space else None
    lengths = prompt_lengths(asked.prompts, asked.tokens, has_long=asked.layout is not None)
    with TemporaryDirectory() as home, memory_group(asked.cgroup) as group:
        folder = Path(home) / "long"
        model = str(write_long_context_model(asked.layout, folder)) if asked.layout else EMBEDDED_IDS[0]
        found = run(asked.memory, model, lengths, space, group, Path(home), asked.bursts, asked.after)
    text = json.dumps(found, indent=2)
    if asked.json is not None:
        asked.json.write_text(text)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
