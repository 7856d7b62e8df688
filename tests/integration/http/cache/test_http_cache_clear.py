"""Removing and not storing: POST /v1/cache/clear, `cairn cache clear` through a running server, and `store: false`."""

import json
from pathlib import Path
from typing import Any

from adapters.fake.environment import FakeClock
from adapters.fake.options import HYBRID, FakeOptions
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions
from adapters.memory.block_store import MemoryBlockStore
from adapters.zstd.codec import ZstdStateCodec
from application.settings import CacheSettings
from tests.support.http.clients import CHAT, COMPLETIONS, PROMPT, WARM, complete
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.cli_process import run_cairn
from tests.support.telemetry.recording import RecordingEvents

CLEAR = "/v1/cache/clear"
OPTIONS = FakeOptions(eos_every=0)


def clear(service: FakeService, **body: Any) -> dict[str, Any]:
    response = service.client.post(CLEAR, json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer.pop("object") == "cairn.cleared"
    return answer


def reused(service: FakeService, **body: Any) -> int:
    header = complete(service, PROMPT, **body)
    return int(header.split(";")[0].removeprefix("reused="))


def is_stored(service: FakeService) -> bool:
    """Whether all that was computed is in the store."""
    queue = service.client.get("/v1/cache/stats").json()["queue"]
    return queue["persisted"] > 0 and queue["queued"] == 0


def test_a_live_server_forgets_everything() -> None:
    with fake_service(OPTIONS, reuses=True, store=MemoryBlockStore()) as service:
        assert reused(service) == 0
        assert reused(service) > 0
        answer = clear(service)
        assert answer["records"] > 0
        assert answer["hot_records"] > 0
        assert answer["problem"] is None
        stats = service.client.get("/v1/cache/stats").json()
        assert (stats["hot"]["used_bytes"], stats["store"]["stored_bytes"]) == (0, 0)
        assert reused(service) == 0
        assert reused(service) > 0


def test_the_hot_tier_alone_is_cleared_and_what_is_stored_is_reused() -> None:
    with fake_service(OPTIONS, reuses=True, store=MemoryBlockStore()) as service:
        assert reused(service) == 0
        service.wait_until(lambda: is_stored(service), "the store to have what was computed")
        used_bytes = service.client.get("/v1/cache/stats").json()["hot"]["used_bytes"]
        answer = clear(service, tier="hot")
        assert (answer["hot_bytes"], answer["records"], answer["documents"]) == (used_bytes, 0, 0)
        stats = service.client.get("/v1/cache/stats").json()
        assert (stats["hot"]["used_bytes"], stats["store"]["stored_bytes"] > 0) == (0, True)
        assert reused(service) > 0


def test_a_tenant_s_salt_clears_that_tenant() -> None:
    settings = CacheSettings(salt="the server's own")
    with fake_service(OPTIONS, reuses=True, store=MemoryBlockStore(), cache_settings=settings) as service:
        for salt in ("alice", "bob"):
            assert reused(service, cache_salt=salt) == 0
        service.wait_until(lambda: is_stored(service), "the store to have what was computed")
        answer = clear(service, salt="alice")
        assert answer["records"] > 0
        assert answer["bytes"] > 0
        assert reused(service, cache_salt="bob") > 0
        assert reused(service, cache_salt="alice") == 0
        assert clear(service, salt="")["records"] == 0
        assert clear(service, model="somebody else's")["records"] == 0
        assert clear(service, model=DEFAULT_MODEL, salt="bob")["records"] > 0


def test_what_is_not_understood_clears_nothing() -> None:
    bodies: list[Any] = [{"modle": "x"}, {"model": 7}, {"salt": ["alice"]}, [], "all"]
    bodies += [{"tier": "store"}, {"tier": "hot", "model": DEFAULT_MODEL}, {"tier": "hot", "salt": ""}]
    with fake_service(OPTIONS, reuses=True, store=MemoryBlockStore()) as service:
        reused(service)
        for body in bodies:
            response = service.client.post(CLEAR, json=body)
            assert response.status_code == 400, response.text
        assert service.client.get(CLEAR).status_code == 405
        assert reused(service) > 0


def test_the_command_asks_the_server_that_has_the_store(tmp_path: Path) -> None:
    path = tmp_path / "store"
    store = LmdbBlockStore(path, LmdbOptions(64 << 20), ZstdStateCodec(), RecordingEvents(), FakeClock())
    with fake_service(OPTIONS, reuses=True, store=store) as service:
        reused(service)
        service.client.post("/v1/cache/warm", json={"prompt": PROMPT})
        port = service.base_url.rpartition(":")[2]
        environment = {"CAIRN_STORE__DIR": str(path), "CAIRN_SERVER__PORT": port, "CAIRN_STORE__QUOTA": "64MiB"}
        asked = run_cairn(tmp_path, "cache", "clear", stdin="n\n", **environment)
        assert asked.returncode == 1
        assert "records?" in asked.stderr
        assert reused(service) > 0
        hot = run_cairn(tmp_path, "cache", "clear", "--tier", "hot", "--yes", "--json", **environment)
        assert hot.returncode == 0, hot.stderr
        assert json.loads(hot.stdout)["removed_memory_bytes"] > 0
        both = run_cairn(tmp_path, "cache", "clear", "--tier", "hot", "--salt", "", "--yes", **environment)
        assert (both.returncode, "--salt" in both.stderr) == (2, True)
        assert reused(service) > 0
        done = run_cairn(tmp_path, "cache", "clear", "--yes", "--json", **environment)
        assert done.returncode == 0, done.stderr
        removed = json.loads(done.stdout)
        assert removed["removed"] > 0
        assert removed["removed_from_memory"] > 0
        assert reused(service) == 0
        # A folder that somebody else has is not guessed to be that server's.
        other = run_cairn(tmp_path, "cache", "clear", "--yes", "--store", str(path), **environment)
        assert (other.returncode, "--url" in other.stderr) == (1, True)


MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": PROMPT}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": MESSAGES, "max_tokens": 2},
    COMPLETIONS: {"prompt": [PROMPT, PROMPT[:300]], "n": 2, "max_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/api/chat": {"messages": MESSAGES, "options": {"num_predict": 2}},
    "/api/generate": {"prompt": PROMPT, "options": {"num_predict": 2}},
}


def stored(service: FakeService) -> int:
    stats = service.client.get("/v1/cache/stats").json()
    models = stats["store"]["models"]
    return sum(model["blocks"] + model["snapshots"] for model in models) + stats["queue"]["enqueued"]


def ask(service: FakeService, path: str, **fields: Any) -> None:
    response = service.client.post(path, json={**BODIES[path], **fields})
    assert response.status_code == 200, response.text
    service.wait_until_idle()


def test_false_keeps_it_out_of_the_store() -> None:
    with fake_service(FakeOptions(eos_every=0, layout=HYBRID), reuses=True, store=MemoryBlockStore()) as service:
        for path in BODIES:
            for stream in (False, True):
                ask(service, path, store=False, stream=stream)
                assert stored(service) == 0
                assert service.client.get("/v1/cache/stats").json()["hot"]["blocks"] > 0
        ask(service, COMPLETIONS, prompt=f"another {PROMPT}")
        assert stored(service) > 0


def test_warming_without_storing_is_refused_by_name() -> None:
    with fake_service(OPTIONS, reuses=True, store=MemoryBlockStore()) as service:
        response = service.client.post(WARM, json={"prompt": PROMPT, "store": False})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "store")
        assert stored(service) == 0
