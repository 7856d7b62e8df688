"""Many clients that leave at random moments: nothing leaks, and everyone who stays is answered."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from adapters.fake.options import FakeOptions
from domain.scheduling.step_values import StepLimits
from tests.support.effort import scaled
from tests.support.http.clients import RawClient
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.processes.resources import resources

NUM_CLIENTS = scaled(60)
NUM_AT_ONCE = 16


def _body(generator: random.Random) -> tuple[str, dict[str, object]]:
    """A request that takes long enough to be left at any point of it."""
    prompt = "x" * generator.choice((1, 50, 3_000, 20_000))
    common: dict[str, object] = {
        "stream": generator.random() < 0.5,
        "max_tokens": generator.choice((1, 20, 5_000)),
        "n": generator.choice((1, 1, 1, 3)),
        "ignore_eos": True,
    }
    if generator.random() < 0.5:
        return "/v1/chat/completions", {"messages": [{"role": "user", "content": prompt}], **common}
    return "/v1/completions", {"prompt": generator.choice((prompt, [prompt, "y"])), **common}


def _leave_at_random(service: FakeService, number: int) -> None:
    """Leave at once, after a random moment, after the first bytes, or in the middle of the request itself."""
    generator = random.Random(number)
    path, body = _body(generator)
    moment = generator.choice(("at once", "later", "first bytes", "unfinished"))
    extra = 10 if moment == "unfinished" else 0
    client = RawClient(service.base_url, path, body, announce_extra_bytes=extra)
    if moment == "later":
        threading.Event().wait(generator.random() * 0.2)
    elif moment == "first bytes":
        status = client.read_until(b"\r\n").split(b" ")[1]
        assert status in (b"200", b"503"), client.received
    client.leave()


def _ask(service: FakeService) -> str:
    response = service.client.post("/v1/completions", json={"prompt": "fine?", "temperature": 0, "max_tokens": 12})
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


@pytest.mark.slow
def test_many_clients_that_leave() -> None:
    limits = StepLimits(max_batch=8, prefill_budget=256, grid=256)
    with fake_service(FakeOptions(eos_every=0), limits=limits, max_queue=64) as service:
        expected = _ask(service)
        before = resources()
        with ThreadPoolExecutor(NUM_AT_ONCE) as pool:
            for left in pool.map(lambda number: _leave_at_random(service, number), range(NUM_CLIENTS)):
                assert left is None
        service.wait_until_idle()
        assert service.num_open_sequences() == 0
        assert not service.events.of("FaultObserved")
        assert [_ask(service) for _ in range(10)] == [expected] * 10
        service.wait_until(lambda: resources().is_within(before), f"no more than {before}")
        assert service.client.get("/health/ready").status_code == 200
