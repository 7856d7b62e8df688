"""What a router and a shared store save a fleet: tokens that three servers compute for 30 conversations, against one
server that has them all.

    python -m bench.fleet --vllm-router COMMAND [--models small-demo,small-demo-hybrid] [--kv-aware] [--json FILE]

The routers are real (vllm-router 0.1.17). The models have the tokenizers, templates and kinds of layers of the embedded
ones and small layers: what is reused does not depend on their width, and the machine may be busy. Each conversation has
one of five system prompts and three turns; six (`--at-once`) are asked together, and all have their turn before any has
the next. An event follows the second turn, and the third alone is counted then: another router starts and takes every
other conversation, the router or a server restarts, or an eviction storm comes: prompts of others, past the router,
that push out what one server has (servers of the storm keep little). Every play has a router of its own. `--kv-aware`
needs servers that publish events. The last column is the share of the busiest server.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from bench.common.servers import ServerProcess, free_port
from bench.http_client import Message, user, words
from tests.support.mlx.small_demos import SMALL_DEMOS, write_small_demos
from tests.support.processes.servers.redis_server import redis_server

NUM_SERVERS, NUM_TALKS, NUM_SYSTEMS, NUM_TURNS = 3, 30, 5, 3
SYSTEM_WORDS, TURN_WORDS, STORM_WORDS, STORM_PROMPTS = 40, 6, 60, 40
STORM_QUOTA_MIB = 8
"""Of a server of the storm, in memory, where nothing else is kept: about twice what its conversations need."""

KV_BLOCK = 16
PATIENCE_S = 120
EVENTS = ("steady", "router added", "router restarted", "server restarted", "eviction storm")
RUNS = count(100)
SEED = 10_000_000
CATCH_UP_S = 8
"""That a new router needs to ask for the events that it missed: two heartbeats of a server and some."""


@dataclass
class Server:
    process: ServerProcess
    events_port: int = 0
    replay_port: int = 0


@dataclass
class Counts:
    """Tokens of the prompts, and those of them that were computed, by turn."""

    prompt: list[int] = field(default_factory=lambda: [0] * NUM_TURNS)
    computed: list[int] = field(default_factory=lambda: [0] * NUM_TURNS)

    def of(self, event: str) -> int:
        return sum(self.computed if event == "steady" else self.computed[2:])


class Fleet:
    """Running servers of one model, `routers` in front of them, and conversations with them."""

    def __init__(
        self, model: str, servers: Sequence[Server], options: argparse.Namespace, policy: str, folder: Path
    ) -> None:
        self.model = model
        self.servers = servers
        self.policy = policy
        self._options = options
        self._folder = folder
        self.routers: list[ServerProcess] = []

    def add_router(self) -> None:
        """None for one server alone."""
        if not self.policy:
            return
        urls = [server.process.url for server in self.servers]
        arguments = ["vllm_router.launch_router", "--policy", self.policy, "--worker-urls", *urls]
        arguments += ["--health-check-endpoint", "/health/ready", "--health-check-interval-secs", "1"]
        arguments += ["--health-failure-threshold", "1", "--health-success-threshold", "1"]
        arguments += ["--balance-abs-threshold", "16", "--worker-startup-check-interval", "1"]
        arguments += ["--retry-initial-backoff-ms", "500", "--retry-backoff-multiplier", "2"]
        arguments += ["--prometheus-port", str(free_port())]
        if self.policy == "kv_aware":
            for server in self.servers:
                for flag, port in (("event", server.events_port), ("event-replay", server.replay_port)):
                    arguments += [f"--kv-{flag}-source", f"{server.process.url}=tcp://127.0.0.1:{port}"]
            arguments += ["--kv-event-block-size", str(KV_BLOCK), "--kv-event-model", self.model]
        python = str(self._options.vllm_router.with_name("python"))
        self.routers.append(ServerProcess(arguments, "/readiness", self._folder / "router.log", python=python))
        self.routers[-1].start()
        self.wait_until_all_are_healthy()
        if self.policy == "kv_aware":
            time.sleep(CATCH_UP_S)

    def wait_until_all_are_healthy(self) -> None:
        for router in self.routers:
            wait_until(lambda url=router.url: httpx.get(f"{url}/readiness").json()["healthy_workers"] == NUM_SERVERS)

    def play(self, event: str) -> Counts:
        """30 conversations, with `event` before the third turn."""
        self.add_router()
        try:
            return self._play(event)
        finally:
            while self.routers:
                self.routers.pop().stop()

    def _play(self, event: str) -> Counts:
        counts, order, seeds = Counts(), random.Random(1), count(SEED, 100)
        run = f"{next(RUNS)} "  # the texts of all plays are alike, so that tokens can be compared, and none is reused
        systems = [run + words(next(seeds), SYSTEM_WORDS) for _ in range(NUM_SYSTEMS)]
        talks = [[Message(role="system", content=systems[number % NUM_SYSTEMS])] for number in range(NUM_TALKS)]
        for turn in range(NUM_TURNS):
            if turn == 2:
                self.happen(event, run, seeds)
            for talk in talks:
                talk.append(user(words(next(seeds), TURN_WORDS)))
            order.shuffle(talks)
            urls = [router.url for router in self.routers] or [self.servers[0].process.url]
            with ThreadPoolExecutor(self._options.at_once) as pool:
                asked = [pool.submit(self.ask, urls[at % len(urls)], talk) for at, talk in enumerate(talks)]
            for talk, answer in zip(talks, [one.result() for one in asked], strict=True):
                usage: dict[str, Any] = answer["usage"]
                counts.prompt[turn] += usage["prompt_tokens"]
                counts.computed[turn] += usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                talk.append(Message(role="assistant", content=answer["choices"][0]["message"]["content"]))
            for server in self.servers:
                wait_until(lambda url=server.process.url: is_written(url))
        return counts

    def ask(self, url: str, messages: list[Message]) -> dict[str, Any]:
        body = {"model": self.model, "messages": messages, "max_tokens": 4, "temperature": 0}
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=PATIENCE_S)
        answer.raise_for_status()
        found: dict[str, Any] = answer.json()
        return found

    def happen(self, event: str, run: str, seeds: Iterator[int]) -> None:
        if event == "router added":
            self.add_router()
        elif event == "router restarted" and self.routers:
            self.routers.pop().stop()
            self.add_router()
        elif event == "server restarted":
            self.servers[0].process.stop()
            self.servers[0].process.start()
            self.ask(self.servers[0].process.url, [user("Hello")])
            self.wait_until_all_are_healthy()
        elif event == "eviction storm":
            for _ in range(STORM_PROMPTS):
                self.ask(self.servers[0].process.url, [user(run + words(next(seeds), STORM_WORDS))])

    def num_requests(self) -> list[int]:
        return [num_requests(server.process.url) for server in self.servers]


def num_requests(url: str) -> int:
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    name = "gen_ai_server_request_duration_seconds_count"
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)))


def is_written(url: str) -> bool:
    stats = httpx.get(f"{url}/v1/cache/stats").json()
    return not (stats["queue"]["queued"] or (stats["shared"] or {"queued": 0})["queued"])


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError("waited in vain")
        time.sleep(0.1)


@contextmanager
def servers_of(models: Path, number: int, home: Path, flags: Sequence[str], **own: str) -> Iterator[list[Server]]:
    """`number` running servers; `flags` and `own`: further flags and variables of each."""
    with ExitStack() as stack:
        found: list[Server] = []
        for at in range(number):
            folder = home / str(at)
            folder.mkdir(parents=True)
            events, replay = free_port(), free_port()
            variables = {name: value.format(events=events, replay=replay) for name, value in own.items()}
            arguments = ["tests.support.stores.small_blocks", "serve", "--model-dir", str(models)]
            arguments += ["--store", str(folder / "store"), "--shared-deadline-s", "60", *flags]
            process = ServerProcess(
                arguments,
                "/health/live",
                folder / "log",
                environment={"HOME": str(folder), "CAIRN_MODEL__DEFAULT": SMALL_DEMOS[0], **variables},
            )
            stack.enter_context(process)
            found.append(Server(process, events, replay))
        yield found


TELLS = {
    "CAIRN_CACHE__EVENTS": "tcp://127.0.0.1:{events}",
    "CAIRN_CACHE__EVENTS_REPLAY": "tcp://127.0.0.1:{replay}",
    "CAIRN_CACHE__EVENTS_BLOCK": str(KV_BLOCK),
}


def compare(model: str, options: argparse.Namespace, folder: Path) -> dict[str, dict[str, Any]]:
    """By policy and store, then by event: computed tokens and the share of the busiest server."""
    policies = [*filter(None, options.policies.split(",")), *(["kv_aware"] if options.kv_aware else [])]
    models = write_small_demos(folder / "models")
    found: dict[str, dict[str, Any]] = {}
    with redis_server(folder / "redis", "--maxmemory", "1gb", "--maxmemory-policy", "allkeys-lru") as redis:
        for name, number, shared in (
            ("one server", 1, ""),
            ("", NUM_SERVERS, ""),
            (", shared store", NUM_SERVERS, redis.url),
        ):
            for is_storm in (False, True):
                events = [event for event in options.events.split(",") if (event == EVENTS[-1]) is is_storm]
                flags = ["--memory", f"{NUM_SERVERS // number}GiB"]
                own = TELLS if options.kv_aware else {}
                own = {**own, **({"CAIRN_STORE__SHARED": shared} if shared else {})}
                if is_storm:
                    flags += ["--live-bytes", "0", "--hot-tier", "0"]
                    quota = STORM_QUOTA_MIB * NUM_SERVERS // number
                    own |= {"CAIRN_STORE__KIND": "memory", "CAIRN_STORE__QUOTA": f"{quota}MiB"}
                if not events:
                    continue
                home = folder / f"{number}-{bool(shared)}-{is_storm}"
                with servers_of(models, number, home, flags, **own) as servers:
                    for policy in [""] if number == 1 else policies:
                        fleet = Fleet(model, servers, options, policy, folder)
                        row = found.setdefault(f"{policy}{name}", {})
                        for event in events:
                            measure(fleet, event, row)
                            print(time.strftime("%X"), model, f"{policy}{name}", event, row, flush=True)
    return found


def measure(fleet: Fleet, event: str, row: dict[str, Any]) -> None:
    if event.startswith("router") and fleet.policy in ("", "round_robin") and "third turn" in row:
        row[event] = row["third turn"]  # a router that knows nothing has nothing to lose
        return
    for server in fleet.servers:
        fleet.ask(server.process.url, [user("Hello")])
    before = fleet.num_requests()
    counts = fleet.play(event)
    row[event] = counts.of(event)
    if event == "steady":
        row["third turn"] = counts.computed[2]
        asked = [later - earlier for earlier, later in zip(before, fleet.num_requests(), strict=True)]
        row["busiest"] = max(asked) / sum(asked)


def print_table(model: str, rows: dict[str, dict[str, Any]], events: Sequence[str]) -> None:
    print(f"\n{model}: computed tokens, and times those of one server\n")
    print("| | " + " | ".join(events) + " | busiest |\n" + "|---" * (len(events) + 2) + "|")
    for name, row in rows.items():
        cells = [f"{row[event]:,} ({row[event] / rows['one server'][event]:.2f})" for event in events]
        print(f"| {name} | " + " | ".join(cells) + f" | {row.get('busiest', 1):.0%} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-router", type=Path, required=True, help="the command in its own environment")
    parser.add_argument("--models", default=",".join(SMALL_DEMOS))
    parser.add_argument("--policies", default="round_robin,cache_aware")
    parser.add_argument("--events", default=",".join(EVENTS))
    parser.add_argument("--kv-aware", action="store_true")
    parser.add_argument("--at-once", type=int, default=6, help="requests that are asked together")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for model in options.models.split(","):
        with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
            results[model] = compare(model, options, Path(folder))
        print_table(model, results[model], options.events.split(","))
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
