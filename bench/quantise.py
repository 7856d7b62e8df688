"""First tokens with and without a job that quantises beside them, paired: what a copy costs those who ask meanwhile.

    python -m bench.quantise [--rounds 6] [--words 60] [--json FILE]

One server with `cairn-demo`, prompts that were not asked before, one after the other: in each round four without a job,
then four during all of which one runs. It measures, writes and compares, and begins anew when it has ended.
"""

import argparse
import json
import shutil
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from bench.common.servers import ServerProcess
from bench.http_client import measure, words
from bench.serve import completion

PATH = "/admin/api/quantise"
MODEL = "cairn-demo"
PER_ROUND = 4
DEADLINE_S = 120.0


class Jobs:
    """`home`: the server's cache, where measured sensitivities are remembered; without them each job measures."""

    def __init__(self, url: str, home: Path) -> None:
        self._client, self._home = httpx.Client(base_url=url, timeout=DEADLINE_S), home
        self.num = 0

    def start(self) -> None:
        """Returns once it measures."""
        shutil.rmtree(self._home / "cairn" / "sensitivities", ignore_errors=True)
        self.num += 1
        order = {"model": MODEL, "recipe": "measured", "name": f"copy{self.num}"}
        self._client.post(PATH, json=order).raise_for_status()
        self._wait(lambda job: job["phase"] != "reading the source")

    def stop(self) -> None:
        self._client.delete(f"{PATH}/{self.last()['id']}").raise_for_status()
        self._wait(lambda job: job["state"] not in ("running", "cancelling"))

    def last(self) -> Any:
        return self._client.get(PATH).raise_for_status().json()["data"][0]

    def _wait(self, is_there: Any) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not is_there(self.last()):
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the job does not go on: {self.last()}")
            time.sleep(0.02)


def first_token_s(url: str, seed: int, count: int) -> float:
    (timeline,) = measure(url, [completion(words(seed, count), 8, MODEL)])
    if timeline.error or timeline.status != 200:
        raise RuntimeError(f"a request failed: {timeline.status} {timeline.error}")
    return timeline.ttft_s


def alone(url: str, seeds: range, count: int) -> list[float]:
    return [first_token_s(url, seed, count) for seed in seeds]


def beside(url: str, jobs: Jobs, seeds: range, count: int) -> list[float]:
    """First tokens of requests during all of which a job ran."""
    found: list[float] = []
    jobs.start()
    for seed in seeds:
        taken_s = first_token_s(url, seed, count)
        if jobs.last()["state"] == "running":
            found.append(taken_s)
        else:
            jobs.start()
    jobs.stop()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    with TemporaryDirectory() as folder:
        arguments = ["interfaces.cli", "serve", "--store", f"{folder}/store", "--model-dir", f"{folder}/models"]
        environment = {"XDG_CACHE_HOME": folder}
        pairs: list[tuple[float, float]] = []
        with ServerProcess(arguments, "/health/ready", Path(folder) / "log", environment=environment) as server:
            jobs = Jobs(server.url, Path(folder))
            first_token_s(server.url, 1_000_000, asked.words)
            for number in range(asked.rounds):
                seeds = range(2 * number * PER_ROUND, (2 * number + 1) * PER_ROUND)
                rest = alone(server.url, seeds, asked.words)
                busy = beside(server.url, jobs, range(seeds.stop, seeds.stop + PER_ROUND), asked.words)
                pairs += zip(rest, busy, strict=False)
    ratios = sorted(with_job / without for without, with_job in pairs)
    for name, values in zip(("without a job", "with a job"), zip(*pairs, strict=True), strict=True):
        print(f"{name}: {statistics.median(values) * 1000:.0f} ms, at most {max(values) * 1000:.0f} ms")
    print(f"ratio: {statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), {len(pairs)} pairs")
    if asked.json:
        asked.json.write_text(json.dumps({"pairs_s": pairs}, indent=2))


if __name__ == "__main__":
    main()
