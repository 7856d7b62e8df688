"""Many long prompts at once on a server with little memory: what becomes of them, and how near it came to its limit.

    python -m bench.memory_limit [--memory 215MiB] [--prompts 100] [--tokens 1500] [--address-space 4GiB] [--json FILE]

A process of its own serves the embedded model; with `--address-space` the system kills what takes more (RLIMIT_AS). The
baseline is the same process before the first prompt.
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
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from domain.byte_size import ByteSize
from tests.support.cli_process import ROOT, command, environment

SAMPLE_S = 0.005
SETTLE_S = 3.0
MIB = 1 << 20


class Watch:
    """The most that a process held since `reset`, looked at every few milliseconds."""

    def __init__(self, pid: int) -> None:
        self._file = Path(f"/proc/{pid}/statm")
        self._has_ended = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def resident_bytes(self) -> int:
        return int(self._file.read_text().split()[1]) * resource.getpagesize()

    def end(self) -> None:
        self._has_ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._has_ended.wait(SAMPLE_S):
            try:
                self.peak_bytes = max(self.peak_bytes, self.resident_bytes())
            except OSError:
                return


async def ask_all(url: str, num_prompts: int, num_tokens: int) -> tuple[Counter[str], dict[str, Any]]:
    """What became of each, and the ledger afterwards."""
    random = Random(7)
    async with httpx.AsyncClient(timeout=3600, limits=httpx.Limits(max_connections=num_prompts)) as client:

        async def ask() -> str:
            prompt = [random.randrange(10, 4000) for _ in range(num_tokens + random.randrange(num_tokens // 4))]
            body = {"prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
            answer = await client.post(f"{url}/v1/completions", json=body)
            return "answered" if answer.status_code == 200 else str(answer.json()["error"]["code"])

        told = Counter(await asyncio.gather(*(ask() for _ in range(num_prompts))))
        await asyncio.sleep(SETTLE_S)
        return told, (await client.get(f"{url}/v1/cache/stats")).json()["memory"]


def run(memory: str, num_prompts: int, num_tokens: int, address_space: int | None, home: Path) -> dict[str, Any]:
    def bound() -> None:
        if address_space is not None:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))

    arguments = command("serve", "--port", "0", "--memory", memory, "--store", "off")
    with subprocess.Popen(
        arguments, cwd=ROOT, env=environment(home), stdout=subprocess.PIPE, text=True, preexec_fn=bound
    ) as server:
        assert server.stdout is not None
        served = next((found for line in server.stdout if (found := re.search(r"at (http://\S+)/v1", line))), None)
        assert served is not None, "it did not come up"
        threading.Thread(target=server.stdout.read, daemon=True).start()
        watch = Watch(server.pid)
        before = watch.resident_bytes()
        told, ledger = asyncio.run(ask_all(served[1], num_prompts, num_tokens))
        after = watch.resident_bytes()
        watch.end()
        server.send_signal(signal.SIGTERM)
    return {
        "outcomes": dict(told),
        "exit": server.returncode,
        "before_mib": before / MIB,
        "peak_mib": watch.peak_bytes / MIB,
        "after_mib": after / MIB,
        "limit_mib": ledger["limits"]["total_bytes"] / MIB,
        "peak_share": watch.peak_bytes / ledger["limits"]["total_bytes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", default="215MiB")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--address-space")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    space = ByteSize.parse(asked.address_space).num_bytes if asked.address_space else None
    with TemporaryDirectory() as home:
        found = run(asked.memory, asked.prompts, asked.tokens, space, Path(home))
    text = json.dumps(found, indent=2)
    if asked.json is not None:
        asked.json.write_text(text)
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
