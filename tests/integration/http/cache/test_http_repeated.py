"""A body that is sent again after its connection broke goes on where the broken one was, in every agent's dialect."""

from typing import Any

import pytest

from adapters.fake.options import HYBRID, FakeOptions
from domain.scheduling.step_values import StepLimits
from tests.support.http.raw_client import RawClient
from tests.support.http.servers.fake_service import fake_service
from tests.support.processes.gate import Gate

CHUNK = 256
NUM_CHUNKS, NUM_DONE = 40, 20
SMALL_STEPS = StepLimits(max_batch=2, prefill_budget=CHUNK, grid=CHUNK)
LONG = "x" * (CHUNK * NUM_CHUNKS - 100)
TURNS = [{"role": "user", "content": LONG}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": TURNS, "max_tokens": 4},
    "/v1/messages": {"messages": TURNS, "max_tokens": 4},
    "/v1/responses": {"input": LONG, "max_output_tokens": 16},
}


@pytest.mark.parametrize(
    ("path", "overlaps"), [("/v1/chat/completions", True), ("/v1/messages", False), ("/v1/responses", True)]
)
def test_a_repeated_body_computes_at_most_a_chunk_again(path: str, overlaps: bool) -> None:
    """`overlaps`: it comes before the server has noticed that the first client is gone."""
    gate = Gate("prefill", NUM_DONE)
    body = {**BODIES[path], "stream": True}
    with fake_service(FakeOptions(layout=HYBRID, eos_every=4, hook=gate), limits=SMALL_STEPS, reuses=True) as service:
        first = RawClient(service.base_url, path, body)
        gate.wait_until_reached()
        if overlaps:
            second = RawClient(service.base_url, path, body)
            service.wait_until(lambda: service.requests.num_read == 2, "both requests to be there")
        first.leave()
        service.wait_until(lambda: service.requests.num_read == int(overlaps), "the first client to be missed")
        gate.open()
        if not overlaps:
            second = RawClient(service.base_url, path, body)
        service.wait_until(lambda: len(service.events.of("RequestEnded")) == 2, "both requests to end")
        second.leave()
        ended = service.events.of("RequestEnded")[-1]
        num_prompt = service.events.of("RequestQueued")[-1].num_prompt_tokens  # type: ignore[attr-defined]
        chunks = service.events.of("PrefillChunkComputed")
    assert ended.usage.completion_tokens > 0  # type: ignore[attr-defined]
    num_computed = sum(chunk.end - chunk.start for chunk in chunks)  # type: ignore[attr-defined]
    assert NUM_DONE * CHUNK < num_prompt <= num_computed <= num_prompt + CHUNK
