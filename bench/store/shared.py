"""The shared store: a first hit and restoring from it against the local store, faults under load, and a fleet against
servers alone.

    python -m bench.store.shared [hit] [restore] [faults] [fleet] [--blocks 16] [--rounds 5] [--mib 32] [--tokens 4096]

A redis-server of the run's own, on loopback. `hit`: the time to the first token of a prompt that another server has
computed, at a server that finds it in the shared store, and at one that finds it in its own store after a restart, in
turns; once on loopback, and once through a relay of 10 Gb/s and 2 ms there and back. `restore`: the part of it that
reads one prompt's records and decodes them. `faults` asks a server whose shared store fails, and one that shares
nothing, for the same new prompts in turns. `fleet` plays agents whose turns go to any of three servers.
"""

import argparse
import asyncio
import json
import math
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from operator import truediv
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import mlx.core as mx
import numpy as np
from valkey import Valkey

from adapters.resp.shared_store import RespSharedStore
from adapters.zstd.codec import ZstdStateCodec
from application.services.prefix.shared.tier import NUM_CALLERS, calls_of
from bench.common.long_context_models import write_model
from bench.store.support import INFO, Facts, open_store, put, record, timed
from domain.ids import GroupIndex
from domain.prefix.record import HostPayload, Record, TensorSpec
from interfaces.composition.token_side import SWITCH_INTERVAL_S
from tests.support.http.replay.replay import cairn_server
from tests.support.http.servers.fake_service import wait_until
from tests.support.mlx.small_demos import SMALL_DEMO, build_from, write_small_demos
from tests.support.processes.servers.redis_server import RedisServer, redis_server

NUM_SERVERS, NUM_AGENTS, NUM_TURNS = 3, 8, 6
CHUNK_BYTES = 1 << 20
WIDE = "wide"
"""A model whose state is large for what it computes: 32 KiB a token in 8 layers, as a model of a billion weights."""


def records(count: int, mib: int) -> list[Record]:
    """Records of bfloat16 numbers that compress like state does."""
    rng = np.random.default_rng(1)
    found: list[Record] = []
    for number in range(count):
        values = rng.standard_normal((mib << 20) // 2, dtype=np.float32).view(np.uint32) >> 16
        data = memoryview(values.astype(np.uint16).tobytes())
        found.append(
            record(number, {GroupIndex(0): HostPayload((TensorSpec("bfloat16", (len(data) // 2,)),), (data,))})
        )
    return found


def restore(folder: Path, options: argparse.Namespace) -> Facts:
    """Seconds to read and decode the same records, each way."""
    made, raw_bytes = records(options.blocks, options.mib), (options.blocks * options.mib) << 20
    keys = [one.key for one in made]
    local = open_store(folder / "local", 8 << 30)
    for one in made:
        put(local, [one])
    with redis_server(folder / "redis", "--maxmemory", "8gb") as server:
        shared = RespSharedStore(server.url, ZstdStateCodec(), b"k" * 32, timeout_s=60)
        written_s = timed(lambda: [shared.put(INFO, [one]) for one in made])
        found = [hint for hint in shared.find(keys) if hint is not None]
        groups = [found[part] for part in calls_of(found)]

        def read_shared() -> None:
            assert len([hint for hint in shared.find(keys) if hint]) == len(keys)
            with ThreadPoolExecutor(NUM_CALLERS) as pool:
                assert all(record is not None for read in pool.map(shared.read, groups) for record in read.records)

        def read_local() -> None:
            assert all(record is not None for record in local.get(keys))

        times: dict[str, list[float]] = {"local": [], "shared": [], "local_cpu": [], "shared_cpu": []}
        for _ in range(options.rounds):
            for name, work in (("local", read_local), ("shared", read_shared)):
                began = time.process_time()
                times[name].append(timed(work))
                times[f"{name}_cpu"].append(time.process_time() - began)
        asked = [timed(lambda: shared.find(keys)) for _ in range(20)]
        shared.close()
    local.close()
    best = {name: min(some) for name, some in times.items()}
    return {
        "raw_mib": raw_bytes >> 20,
        "local_s": best["local"],
        "shared_s": best["shared"],
        "local_cpu_s": best["local_cpu"],
        "shared_cpu_s": best["shared_cpu"],
        "shared_over_local": statistics.median(map(truediv, times["shared"], times["local"])),
        "shared_mib_per_s": (raw_bytes >> 20) / best["shared"],
        "write_mib_per_s": (raw_bytes >> 20) / written_s,
        "encoded_over_raw": sum(hint.size_bytes for hint in found) / raw_bytes,
        "ask_ms": 1000 * statistics.median(asked),
    }


class Relay(Thread):
    """Passes bytes on, each way `delay_s` later and at `bytes_per_s` at most, with 8 MiB on their way."""

    def __init__(self, port: int, delay_s: float = 0.0, bytes_per_s: float = math.inf) -> None:
        super().__init__(daemon=True)
        self.delay_s = delay_s
        self._bytes_per_s = bytes_per_s
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._joined, sock=self._listener, limit=CHUNK_BYTES)
        await server.serve_forever()

    async def _joined(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            found = await asyncio.open_connection("127.0.0.1", self._target, limit=CHUNK_BYTES)
            ends.append(found[1])
            await asyncio.gather(self._pass(reader, found[1]), self._pass(found[0], writer))
        except OSError:
            pass
        finally:
            for end in ends:
                end.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop, free_at = asyncio.get_running_loop(), 0.0
        way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(8)
        delivering = asyncio.create_task(_deliver(way, writer))
        while data := await reader.read(CHUNK_BYTES):
            free_at = max(free_at, loop.time()) + len(data) / self._bytes_per_s
            await way.put((free_at + self.delay_s, data))
        await way.put((0.0, b""))
        await delivering


async def _deliver(way: "asyncio.Queue[tuple[float, bytes]]", writer: asyncio.StreamWriter) -> None:
    while (arrival := await way.get())[1]:
        await asyncio.sleep(max(0.0, arrival[0] - asyncio.get_running_loop().time()))
        writer.write(arrival[1])
        await writer.drain()
    writer.close()


def prompt_of(seed: int, num_tokens: int) -> list[int]:
    return random.Random(seed).choices(range(300, 4000), k=num_tokens)


def complete(
    client: httpx.Client, prompt: list[int], max_tokens: int = 8, model: str = SMALL_DEMO
) -> tuple[float, dict[str, Any]]:
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "return_token_ids": True}
    began = time.perf_counter()
    answer = client.post("/v1/completions", json={**body, "ignore_eos": True})
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - began, answer.json()


def tokens_of(answer: dict[str, Any]) -> list[int]:
    return list(answer["choices"][0]["token_ids"])


def stats_of(client: httpx.Client) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/v1/cache/stats").json()["shared"]
    return found


def wait_until_shared(client: httpx.Client) -> None:
    wait_until(lambda: client.get("/v1/cache/stats").json()["queue"]["queued"] == 0, "the local store")
    wait_until(lambda: stats_of(client)["queued"] == 0, "the shared store")


@contextmanager
def servers(
    folder: Path, models: Path, urls: list[str], model: str = SMALL_DEMO, *flags: str
) -> Iterator[list[httpx.Client]]:
    with ExitStack() as stack:
        found: list[httpx.Client] = []
        for number, url in enumerate(urls):
            home = folder / f"server-{number}"
            home.mkdir(exist_ok=True)
            own = {"CAIRN_STORE__SHARED": url} if url else {}
            folders = ("--store", str(home / "store"), "--model-dir", str(models))
            found.append(stack.enter_context(cairn_server(home, *folders, *flags, **own))[1])
            complete(found[-1], prompt_of(number, 32), model=model)  # loads it
        yield found


def write_wide(folder: Path) -> Path:
    small = json.loads((write_small_demos(folder.with_name("small")) / SMALL_DEMO / "config.json").read_text())
    config = {**small, "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    network = build_from(config)
    network.set_dtype(mx.bfloat16)
    write_model(network, config, folder / WIDE)
    return folder


def hit(folder: Path, options: argparse.Namespace) -> Facts:
    """Seconds to the first token after a first hit in the shared store, and after a restart; by network."""
    models, facts = write_wide(folder / "models"), Facts()
    with redis_server(folder / "redis", "--maxmemory", "8gb") as redis:
        for name, delay_s, bytes_per_s in (("loopback", 0.0, math.inf), ("10 Gb/s, 2 ms", 0.001, 1.25e9)):
            relay = Relay(redis.port, delay_s, bytes_per_s)
            relay.start()
            port = relay.port if delay_s else redis.port
            url, own = f"redis://127.0.0.1:{port}/0", folder / str(port)
            own.mkdir()
            prompts = [prompt_of(port + number, options.tokens) for number in range(options.rounds + 1)]
            flags = (WIDE, "--shared-deadline-s", "60")
            with servers(own, models, [url], *flags) as (first,):
                computed_s = [complete(first, prompt, 1, WIDE)[0] for prompt in prompts]
                wait_until_shared(first)
            with servers(own, models, ["", url], *flags) as clients:
                facts[name] = {"computed_s": statistics.median(computed_s), **first_hits(clients, prompts)}
    return facts


def first_hits(clients: list[httpx.Client], prompts: list[list[int]]) -> Facts:
    """`clients`: one that has the prompts in its store, and one that finds them in the shared store."""
    times: dict[str, list[float]] = {"store": [], "shared": []}
    for number, prompt in enumerate(prompts):
        for tier, client in list(zip(times, clients, strict=True))[:: 1 if number % 2 else -1]:
            took_s, answer = complete(client, prompt, 1, WIDE)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == len(prompt) - 1
            times[tier].append(took_s)
            time.sleep(1.0)  # what is written behind the answer is not the other's
    stats = stats_of(clients[1])
    assert stats["read"]["read"] >= len(prompts), stats
    rest = {tier: some[1:] for tier, some in times.items()}  # the first one connects
    return {
        "restart_s": statistics.median(rest["store"]),
        "first_hit_s": statistics.median(rest["shared"]),
        "ratios": sorted(map(truediv, rest["shared"], rest["store"])),
        "first_hit_over_restart": statistics.median(map(truediv, rest["shared"], rest["store"])),
        "mib": stats["read_bytes"] / len(prompts) / (1 << 20),
        "goal": 1.3,
    }


def faults(folder: Path, options: argparse.Namespace) -> Facts:
    """By fault: the time of requests for new prompts of 600 tokens beyond that of a server that shares nothing, with
    eight conversations at once, and whether all answers are equal."""
    models = write_small_demos(folder / "models")
    facts: Facts = {}
    with redis_server(folder / "redis", "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru") as redis:
        relay = Relay(redis.port)
        relay.start()
        with servers(folder, models, [f"redis://127.0.0.1:{relay.port}/0", ""]) as (shared, alone):
            wait_until(lambda: bool(stats_of(shared)["is_available"]), "the shared store to be asked")
            for name, begin, end in fault_table(redis, relay):
                begin()
                facts[name] = under_load(shared, alone, seed=len(facts) * 1000)
                end()
                began = time.perf_counter()
                wait_until(lambda: bool(stats_of(shared)["is_available"]), "recovery")
                facts[name]["recovery_s"] = time.perf_counter() - began
            facts["shared"] = stats_of(shared)
    return facts


def fault_table(redis: RedisServer, relay: Relay) -> list[tuple[str, Callable[[], object], Callable[[], object]]]:
    def slow(seconds: float) -> Callable[[], object]:
        return lambda: setattr(relay, "delay_s", seconds)

    def nothing() -> None:
        """As it is."""

    def restarted() -> None:
        redis.kill()
        redis.start()

    return [
        ("none", nothing, nothing),
        ("restarted", restarted, nothing),
        ("killed", redis.kill, redis.start),
        ("hangs", lambda: redis.send(signal.SIGSTOP), lambda: redis.send(signal.SIGCONT)),
        ("2 s late", slow(1.0), slow(0.0)),
        ("full", lambda: configure(redis, "noeviction", "1mb"), lambda: configure(redis, "allkeys-lru", "64mb")),
    ]


def configure(redis: RedisServer, policy: str, maxmemory: str) -> None:
    with Valkey(port=redis.port) as client:
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", maxmemory)


def under_load(shared: httpx.Client, alone: httpx.Client, seed: int) -> Facts:
    def conversation(number: int) -> list[tuple[float, float, bool]]:
        found: list[tuple[float, float, bool]] = []
        for turn in range(NUM_TURNS):
            prompt = prompt_of(seed + 100 * number + turn, 600)
            pairs = [complete(client, prompt) for client in ((shared, alone) if turn % 2 else (alone, shared))]
            (with_s, one), (without_s, other) = pairs if turn % 2 else pairs[::-1]
            found.append((with_s, without_s, tokens_of(one) == tokens_of(other)))
        return found

    with ThreadPoolExecutor(NUM_AGENTS) as pool:
        turns = [turn for found in pool.map(conversation, range(NUM_AGENTS)) for turn in found]
    beyond_ms = sorted(1000 * (with_s - without_s) for with_s, without_s, _ in turns)
    return {
        "requests": len(turns),
        "equal": all(is_equal for _, _, is_equal in turns),
        "beyond_ms_median": statistics.median(beyond_ms),
        "beyond_ms_mean": statistics.mean(beyond_ms),
        "with_ms_median": 1000 * statistics.median(with_s for with_s, _, _ in turns),
        "without_ms_median": 1000 * statistics.median(without_s for _, without_s, _ in turns),
    }


def fleet(folder: Path, options: argparse.Namespace) -> Facts:
    """Tokens that three servers compute for agents whose turns go anywhere, sharing and not."""
    models = write_small_demos(folder / "models")
    facts: Facts = {}
    with redis_server(folder / "redis", "--maxmemory", "512mb", "--maxmemory-policy", "allkeys-lru") as redis:
        for name, url in (("alone", ""), ("sharing", redis.url)):
            (own := folder / name).mkdir()
            with servers(own, models, [url] * NUM_SERVERS) as clients:
                facts[name] = agents(clients, is_sharing=bool(url))
    facts["computed_of_alone"] = facts["sharing"]["computed"] / facts["alone"]["computed"]
    return facts


def agents(clients: list[httpx.Client], *, is_sharing: bool) -> Facts:
    """Agents of one system prompt; each turn adds an answer and what a tool said, and goes to any server."""
    choice, system = random.Random(1), prompt_of(7, 1500)
    talks = [[*system, *prompt_of(50 + number, 40)] for number in range(NUM_AGENTS)]
    num_prompt = num_cached = 0
    for turn in range(NUM_TURNS):
        for number, talk in enumerate(talks):
            client = choice.choice(clients)
            _, answer = complete(client, talk)
            num_prompt += answer["usage"]["prompt_tokens"]
            num_cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            talk += [*tokens_of(answer), *prompt_of(1000 * turn + number, 150)]
            if is_sharing:
                wait_until_shared(client)
    facts: Facts = {"prompt_tokens": num_prompt, "computed": num_prompt - num_cached}
    if is_sharing:
        stats = [stats_of(client) for client in clients]
        for name in ("read_bytes", "written_bytes"):
            facts[f"{name}_a_token"] = sum(one[name] for one in stats) / num_prompt
        facts["asked"] = [one["asked"] for one in stats]
    return facts


CASES = {"hit": hit, "restore": restore, "faults": faults, "fleet": fleet}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []])
    parser.add_argument("--blocks", type=int, default=16)
    parser.add_argument("--mib", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4096)
    options = parser.parse_args()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    for name in options.cases or CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps({name: CASES[name](Path(folder), options)}, indent=1), flush=True)


if __name__ == "__main__":
    main()
