"""A soak: clients of several models switch them in and out for minutes, and what the process holds must stay flat.

    python -m bench.soak --minutes 10

The whole service runs in this process, on the embedded models, of which one fits at a time. Baseline is what the
process held in the second quarter of the run: by then every model was loaded and unloaded several times, and lanes
and caches have grown to their bounds. The report has memory (anonymous: the store's file is mapped, and its pages are
the system's to take back), threads, descriptors and the LMDB environment's readers, sampled every few seconds, and the
exit status is 1 where one of them grew by more than its allowance.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from adapters.huggingface.model_folder import EMBEDDED_IDS
from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings, TelemetrySettings
from domain.byte_size import ByteSize
from domain.ids import ModelId, RequestId
from domain.request.request import GenerationRequest, TextPrompt
from domain.request.sampling import SamplingParams, StopRules
from interfaces.composition.service import Service, build_service

NUM_CLIENTS = 4
ALLOWED = {"anonymous_bytes": 32 << 20, "threads": 2, "descriptors": 4, "readers": 2}
"""The growth from the baseline's highest to the last quarter's lowest that is allowed: a leak has no low points."""


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    anonymous_bytes: int
    threads: int
    descriptors: int
    readers: int


def sample(started: float, store: Path) -> Sample:
    _, resident, shared, *_ = map(int, Path("/proc/self/statm").read_text().split())
    return Sample(
        at_s=round(time.monotonic() - started, 1),
        anonymous_bytes=(resident - shared) * os.sysconf("SC_PAGE_SIZE"),
        threads=threading.active_count(),
        descriptors=len(os.listdir("/proc/self/fd")),
        readers=readers_of(store),
    )


def readers_of(store: Path) -> int:
    """Slots of the lock file that are taken; LMDB opens an environment once in a process, so another process looks.
    A failure to read them fails the soak: a figure that is not read is always flat."""
    data = next(store.rglob("data.mdb"), None)
    if data is None:
        return 0
    code = "import lmdb, sys; print(lmdb.open(sys.argv[1], readonly=True, max_dbs=64).readers().count('\\n'))"
    found = subprocess.run(
        [sys.executable, "-c", code, str(data.parent)], stdout=subprocess.PIPE, text=True, check=True
    )
    return int(found.stdout)


async def client(service: Service, number: int, deadline: float, counts: dict[str, int]) -> None:
    turn = 0
    while time.monotonic() < deadline:
        model = ModelId(EMBEDDED_IDS[(number + turn) % len(EMBEDDED_IDS)])
        text = f"client {number % 2} tells a story, part {turn % 7}. " + "Miso is a cat that likes the sun. " * (
            turn % 40
        )
        request = GenerationRequest(
            RequestId(f"soak-{number}-{turn}"),
            model,
            TextPrompt(text),
            sampling=SamplingParams(temperature=0),
            stop=StopRules(max_tokens=16, ignore_eos=True),
        )
        async with service.container.generate().answering([request]) as answer:
            async for _ in answer:
                if turn % 11 == 10:
                    break  # one that leaves
        counts[model] = counts.get(model, 0) + 1
        turn += 1


async def soak(minutes: float, every_s: float) -> tuple[list[Sample], dict[str, int], int]:
    started = time.monotonic()
    samples: list[Sample] = []
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        service = build_service(
            Settings(
                server=ServerSettings(log_level="error"),
                model=ModelSettings(hub_cache="off"),
                store=StoreSettings(
                    dir=str(store), quota=ByteSize(num_bytes=128 << 20), hot_tier=ByteSize(num_bytes=32 << 20)
                ),
                telemetry=TelemetrySettings(enabled=False),
            )
        )
        await service.start()
        try:
            await service.ready()
            deadline = time.monotonic() + minutes * 60
            clients = [asyncio.create_task(client(service, n, deadline, counts)) for n in range(NUM_CLIENTS)]
            loads = 0
            loaded: object = None
            next_s = 0.0
            while not all(task.done() for task in clients):
                await asyncio.wait(clients, timeout=0.05)
                now_loaded = tuple(id(model) for model in service.pool.loaded())
                loads += bool(now_loaded and now_loaded != loaded)
                loaded = now_loaded or loaded
                if time.monotonic() - started >= next_s:
                    samples.append(await asyncio.to_thread(sample, started, store))
                    next_s += every_s
            await asyncio.gather(*clients)
        finally:
            await service.stop()
    return samples, counts, loads


def grown(samples: Sequence[Sample]) -> dict[str, tuple[int, int]]:
    """By measure: the highest of the second quarter, and the lowest of the last, where that is too much."""
    quarter = max(1, len(samples) // 4)
    before, after = samples[quarter : 2 * quarter] or samples[:1], samples[-quarter:]
    found = {name: (max(getattr(s, name) for s in before), min(getattr(s, name) for s in after)) for name in ALLOWED}
    return {name: pair for name, pair in found.items() if pair[1] > pair[0] + ALLOWED[name]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=5.0, help="seconds between two samples")
    arguments = parser.parse_args()
    samples, counts, loads = asyncio.run(soak(arguments.minutes, arguments.every))
    print(json.dumps({"samples": [asdict(s) for s in samples], "answers": counts, "switches": loads}))
    for name in ALLOWED:
        values = [getattr(s, name) for s in samples]
        print(f"{name}: first {values[0]}, middle {values[len(values) // 2]}, last {values[-1]}, highest {max(values)}")
    too_much = grown(samples)
    for name, (before, after) in too_much.items():
        print(f"{name} grew from {before} to {after}")
    return 1 if too_much else 0


if __name__ == "__main__":
    sys.exit(main())
