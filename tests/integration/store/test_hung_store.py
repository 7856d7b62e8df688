"""A volume that hangs costs the requests that waited for it one deadline, and everybody else nothing."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from adapters.memory.block_store import MemoryBlockStore
from application.services.prefix.store_tier import NUM_READERS
from interfaces.http.answering.documented import CACHE_HEADER
from tests.support.http.clients import COMPLETIONS, PROMPT, WARM, complete, explain, warm
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.stores.faulty_stores import PATIENCE_S, READS, HangingStore

SOON_S = 0.05
"""A deadline on the event loop's own clock, for what nobody computes."""


class KeptStore(MemoryBlockStore):
    """Outlives the service it is given to."""

    def close(self) -> None:
        self.flush()


@pytest.fixture
def store() -> HangingStore:
    """It knows the prompt, and no hot tier does."""
    store = HangingStore(KeptStore())
    with fake_service(reuses=True, store=store) as service:
        assert warm(service)["stored_tokens"] == 699
    return store


@contextmanager
def restarted(store: HangingStore, **options: Any) -> Iterator[tuple[FakeService, ThreadPoolExecutor]]:
    """A server that finds the prompt in the store, and clients for it. At the end the store answers again."""
    with fake_service(reuses=True, store=store, **options) as service, ThreadPoolExecutor(9) as clients:
        try:
            yield service, clients
        finally:
            store.recover()


def ask(service: FakeService, prompt: str = PROMPT) -> tuple[str, str]:
    """The answer, and what was reused."""
    response = service.client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 8, "temperature": 0})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["text"], response.headers[CACHE_HEADER]


def pass_deadline(service: FakeService) -> None:
    service.clock.advance(3600)
    service.loop.wake()


def plain(prompt: str = PROMPT) -> str:
    with fake_service() as service:
        return ask(service, prompt)[0]


@pytest.mark.parametrize("hanging", [("get",), READS], ids=["reads", "everything"])
def test_who_waited_for_a_hung_store_computes_after_a_deadline(store: HangingStore, hanging: Sequence[str]) -> None:
    with restarted(store) as (service, clients):
        store.hang(hanging)
        asked = [clients.submit(ask, service) for _ in range(8)]
        store.wait_until_entered(hanging[0])
        service.wait_until(lambda: pass_deadline(service) or all(one.done() for one in asked), "all to be answered")
        answers = [one.result() for one in asked]
        assert {text for text, _ in answers} == {plain()}
        headers = sorted(header for _, header in answers)
        assert headers[0] == "reused=0; live=0; hot=0; store=0; computed=700; reason=slow-store"
        assert len(service.events.of("FaultObserved")) > 0
        # While it hangs nobody waits for it, not even until a deadline; what it has is known without it.
        reason = "never-seen" if hanging == ("get",) else "slow-store"
        assert ask(service, "x" * 600)[1].endswith(f"reason={reason}")
        store.recover()
        # What is asked for before the store's reads have ended is computed without it, and known from then on.
        others = (chr(letter) * 600 for letter in count(ord("y")))
        service.wait_until(lambda: ask(service, next(others))[1].endswith("reason=never-seen"), "the store to be asked")
    with restarted(store) as (service, _):
        assert complete(service) == "reused=699; live=0; hot=0; store=699; computed=1; reason=last-token"


def test_a_hung_fetch_does_not_hold_those_who_compute(store: HangingStore) -> None:
    with (
        restarted(store) as (service, clients),
        service.client.stream(
            "POST", COMPLETIONS, json={"prompt": "running", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        ) as running,
    ):
        lines = running.iter_lines()
        next(lines)
        store.hang()
        waits: Future[tuple[str, str]] = clients.submit(ask, service)
        store.wait_until_entered("get")
        # Restoring is not waiting: it has left the queue, and says so, while it is fetched.
        service.wait_until(lambda: len(service.events.of("RequestAdmitted")) == 2, "it to be admitted")
        assert len(service.events.of("PrefixMatched")) == 1
        for _ in range(50):
            next(lines)
        assert not waits.done()
        pass_deadline(service)
        assert waits.result()[0] == plain()


def test_a_hung_store_is_not_waited_for_by_those_who_ask_about_it(store: HangingStore) -> None:
    with restarted(store, read_timeout_s=SOON_S) as (service, _):
        store.hang()
        assert explain(service)["reason"] == "slow-store"
        stats = service.client.get("/v1/cache/stats").json()
        assert stats["store"] is None
        assert "has not answered" in stats["problem"]
        for _ in range(8):
            assert explain(service)["reason"] == "slow-store"
        assert sum(store.entered.values()) <= NUM_READERS  # threads that hang are few, whoever asks
        store.recover()
        # It answers within the deadline or not: a busy machine may be as late as a store that hangs.
        service.wait_until(lambda: explain(service)["reason"] == "last-token", "the store to be asked again")
        service.wait_until(lambda: service.client.get("/v1/cache/stats").json()["problem"] == "", "the store's figures")


def test_warming_says_that_the_store_does_not_answer(store: HangingStore) -> None:
    with restarted(store, read_timeout_s=SOON_S) as (service, clients):
        store.hang()
        warming = clients.submit(service.client.post, WARM, json={"prompt": PROMPT})
        store.wait_until_entered("keys")
        pass_deadline(service)
        response = warming.result()
        assert response.status_code == 503
        assert "store has not answered" in response.json()["error"]["message"]


def test_clearing_is_refused_while_the_store_hangs_and_holds_nobody(store: HangingStore) -> None:
    with restarted(store, read_timeout_s=SOON_S) as (service, _):
        store.hang()
        assert explain(service)["reason"] == "slow-store"
        pass_deadline(service)  # by the server's clock the read is late as well
        for _ in range(8):
            response = service.client.post("/v1/cache/clear", json={})
            assert response.status_code == 503
            assert "store has not answered" in response.json()["error"]["message"]
        assert store.entered["erase"] == 0
        store.recover()
        service.wait_until(
            lambda: service.client.post("/v1/cache/clear", json={}).status_code == 200, "the store to be cleared"
        )
        service.wait_until(lambda: explain(service)["reason"] == "never-seen", "the store to be asked again")


def test_deletes_and_uses_that_hang_hold_no_reads(store: HangingStore) -> None:
    """What is noted in the store has a thread of its own."""
    with restarted(store, hot_bytes=0) as (service, _):
        store.hang(("touch", "delete"))
        for _ in range(4):
            assert complete(service).startswith("reused=699; live=0; hot=0; store=699")
        store.wait_until_entered("touch")


def test_writes_that_hang_cost_no_answer(store: HangingStore) -> None:
    """What waits for them can be had from the queue."""
    with restarted(store, hot_bytes=0) as (service, _):
        store.hang(("put", "flush"))
        prompts = [f"{number} " * 300 for number in range(5)]
        for prompt in prompts:
            assert complete(service, prompt).startswith("reused=0")
        store.wait_until_entered("put")
        for prompt in prompts:
            assert complete(service, prompt).startswith(f"reused={len(prompt) - 1}; live=0; hot=0")
        assert service.client.get("/v1/cache/stats").json()["queue"]["queued"] > 5


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_process_ends_although_its_store_hangs(kind: str, tmp_path: Path) -> None:
    """Threads in a call that never returns are left behind; nothing waits for them."""
    command = [sys.executable, "-m", "tests.support.processes.hang_at_exit", kind, str(tmp_path / "store")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (ended.returncode, ended.stdout) == (0, "store.close"), ended.stderr
