"""The two servers a replay compares: the service as it ships, and one that never reuses anything."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from adapters.mlx.runtime.device import preferred_grid
from adapters.tokenizers.loader import HfTokenizerLoader
from application.services.prefix.store_tier import Upload
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from interfaces.composition.backends import Backend, model_repository
from tests.support.engines.steered_engine import PrefillGate, SteeredEngine
from tests.support.http.replay.replay import TIMEOUT_S
from tests.support.http.servers.fake_service import wait_until
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.processes.cli_process import CairnProcess, cairn_process
from tests.support.telemetry.recording import RecordingEvents


@dataclass
class CachingServer:
    """In this process, on a store of its own; prefill can be held by `gate`, and `events` has what happened."""

    live: LiveService
    client: httpx.Client
    gate: PrefillGate
    events: RecordingEvents

    def num_streams(self) -> int:
        """Answers somebody listens to. One less means that its cancellation has reached the engine."""
        return self.live.service.container.requests().num_read

    def num_lookups(self) -> int:
        """Prompts that are being hashed."""
        tiers = self.live.service.engine._loop.prefix_cache._tiers  # type: ignore[attr-defined]
        return int(tiers.hashing.num_pending)


@contextmanager
def caching_server(
    store_dir: Path, engine: EngineSettings | None = None, model_dir: Path | None = None, upload: Upload | None = None
) -> Iterator[CachingServer]:
    """`upload`: as in Backend; where this runs, the backend itself has none."""
    settings = _settings(StoreSettings(dir=str(store_dir)), engine, model_dir)
    gate, events = PrefillGate(), RecordingEvents()
    steered = Backend(
        lambda: SteeredEngine(gate), model_repository(settings), HfTokenizerLoader(), preferred_grid(), upload=upload
    )
    with (
        live_service(settings, backend=steered, extra_sinks=(events,)) as live,
        httpx.Client(base_url=live.base_url, timeout=TIMEOUT_S) as client,
    ):
        yield CachingServer(live, client, gate, events)


def _settings(store: StoreSettings, engine: EngineSettings | None, model_dir: Path | None) -> Settings:
    return Settings(
        server=ServerSettings(port=0, keepalive_s=0.05),
        model=ModelSettings(download=False, dirs=(str(model_dir),) if model_dir else ()),
        engine=engine or EngineSettings(),
        store=store,
    )


@contextmanager
def cairn_server(home: Path, *arguments: str, **variables: str) -> Iterator[tuple[CairnProcess, httpx.Client]]:
    """`cairn serve` as a process of its own."""
    command = ("serve", "--port", "0", *arguments)
    with cairn_process(home, command, module="tests.support.stores.small_blocks", **variables) as cairn:
        found = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
        assert found
        with httpx.Client(base_url=found[1], timeout=TIMEOUT_S) as client:
            yield cairn, client


CACHELESS = ("--store", "off", "--hot-tier", "0")
"""Arguments of a `cairn_server` that computes every prompt from its first token."""


@contextmanager
def cacheless_server(model_dir: Path, engine: EngineSettings | None = None) -> Iterator[httpx.Client]:
    """The same in this process, where no other server may compute meanwhile."""
    store = StoreSettings(kind="off", hot_tier=ByteSize(num_bytes=0))
    with (
        live_service(_settings(store, engine, model_dir)) as live,
        httpx.Client(base_url=live.base_url, timeout=TIMEOUT_S) as client,
    ):
        yield client


def wait_until_written(client: httpx.Client) -> None:
    """Until the store has everything that was captured."""

    def is_written() -> bool:
        queue = client.get("/v1/cache/stats").json()["queue"]
        return queue["enqueued"] > 0 and not queue["queued"]  # what a later turn let go of was withdrawn

    wait_until(is_written, "the store to have everything")
