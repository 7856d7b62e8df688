"""A client that leaves is cancelled, whatever its request is doing, streamed or not; nothing stays behind."""

from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from domain.scheduling.step_values import StepLimits
from tests.support.http.clients import RawClient
from tests.support.http.servers.fake_service import FakeService, fake_service
from tests.support.processes.gate import Gate

PATH = "/v1/completions"
LONG_PROMPT = "x" * 10_240  # 40 chunks
SMALL_STEPS = StepLimits(max_batch=1, prefill_budget=256, grid=256)


def leave(service: FakeService, client: RawClient, num_left: int = 0) -> None:
    """Close the connection and wait until the server has noticed, which queues the cancellation."""
    client.leave()
    service.wait_until(lambda: service.requests.num_read == num_left, "the server to notice that its client left")


def assert_answers(service: FakeService) -> None:
    service.wait_until_idle()
    response = service.client.post(PATH, json={"prompt": "still there?", "max_tokens": 3})
    assert response.status_code == 200
    assert response.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("operation", "count", "asked", "most_decodes"),
    [
        ("prefill", 2, {"prompt": LONG_PROMPT}, 0),
        ("decode", 5, {"prompt": "x"}, 6),
        ("decode", 3, {"prompt": ["a", "b"], "n": 2}, 16),
    ],
    ids=["prefill", "decode", "choices"],
)
def test_while_it_is_computed(
    operation: str, count: int, asked: dict[str, Any], most_decodes: int, stream: bool
) -> None:
    gate = Gate(operation, count)
    limits = SMALL_STEPS if operation == "prefill" else None
    with fake_service(FakeOptions(eos_every=0, hook=gate), limits=limits) as service:
        client = RawClient(service.base_url, PATH, {**asked, "stream": stream, "max_tokens": 10_000})
        gate.wait_until_reached()
        leave(service, client)
        gate.open()
        service.wait_until_idle()
        if "n" not in asked:
            assert gate.num_calls(operation) == count + 1
        assert gate.num_calls("decode") <= most_decodes
        assert_answers(service)


@pytest.mark.parametrize("stream", [True, False])
def test_while_queued(stream: bool) -> None:
    gate = Gate("decode", 5)
    with fake_service(FakeOptions(eos_every=0, hook=gate), limits=SMALL_STEPS) as service:
        running = RawClient(service.base_url, PATH, {"prompt": "x", "stream": True, "max_tokens": 50})
        gate.wait_until_reached()
        queued = RawClient(service.base_url, PATH, {"prompt": "y", "stream": stream})
        service.wait_until(lambda: service.requests.num_read == 2, "the second request to be queued")
        leave(service, queued, num_left=1)
        gate.open()
        running.read_until(b"[DONE]")
        running.leave()
        service.wait_until_idle()
        assert len({sequence for _, sequence in gate.calls if sequence is not None}) == 1
        assert_answers(service)


@pytest.mark.parametrize("stream", [True, False])
def test_while_the_model_is_loading(stream: bool) -> None:
    gate = Gate("load", 0)
    with fake_service(FakeOptions(hook=gate)) as service:
        client = RawClient(service.base_url, PATH, {"prompt": "x", "stream": stream, "max_tokens": 10_000})
        gate.wait_until_reached()
        client.leave()
        gate.open()
        assert_answers(service)


def test_others_are_not_disturbed() -> None:
    with fake_service(FakeOptions(eos_every=0)) as service:
        wanted = service.client.post(PATH, json={"prompt": "keep", "max_tokens": 200, "temperature": 0}).json()
        keeps = RawClient(
            service.base_url, PATH, {"prompt": "keep", "max_tokens": 200, "temperature": 0, "return_token_ids": True}
        )
        leaves = [
            RawClient(service.base_url, PATH, {"prompt": f"go {number}", "stream": True, "max_tokens": 10_000})
            for number in range(4)
        ]
        for client in leaves:
            client.read_until(b"data: ")
            client.leave()
        text = wanted["choices"][0]["text"].replace("\\", "\\\\").replace('"', '\\"')
        keeps.read_until(b'"total_tokens":204')
        assert text.encode() in keeps.received
        keeps.leave()
        service.wait_until_idle()
