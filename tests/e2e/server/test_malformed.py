"""Malformed requests by the thousand: drawn from the served OpenAPI document by schemathesis, and made by hand.

No 5xx, errors always in OpenAI's shape, nothing left behind, and the server answers afterwards.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import Case, GenerationMode, Response

from adapters.fake.options import FakeOptions
from tests.support.effort import drawn
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.resources import resources

pytestmark = pytest.mark.slow

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
NUM_MUTATED = drawn(1_600)
NUM_NEGATIVE = drawn(24)
"""For each of the two routes that take a body. One of these takes as long as thirty of those made by hand."""
NUM_POSITIVE = drawn(16)

VALID: dict[str, dict[str, Any]] = {
    CHAT: {
        "model": "fake-attention",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "a", "content": "4"},
        ],
        "max_tokens": 4,
        "temperature": 1.0,
        "top_p": 0.9,
        "top_k": 5,
        "logit_bias": {"65": 1},
        "seed": 1,
        "stop": ["x"],
        "n": 1,
        "logprobs": True,
        "top_logprobs": 1,
        "stream": False,
        "stream_options": {"include_usage": True},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "response_format": {"type": "text"},
        "chat_template_kwargs": {"a": 1},
    },
    COMPLETIONS: {
        "prompt": ["a", [98, 99]],
        "max_tokens": 4,
        "min_tokens": 1,
        "echo": False,
        "best_of": 1,
        "n": 1,
        "logprobs": None,
        "stop": "y",
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "ignore_eos": True,
        "stream": True,
        "cache_salt": "s",
    },
    RESPONSES: {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "a", "output": "4"},
            {"type": "web_search_call", "action": [[], {"x": []}]},
            {"type": "item_reference", "id": "msg_resp_3_0"},
        ],
        "previous_response_id": "resp_3",
        "instructions": "be brief",
        "max_output_tokens": 4,
        "tools": [{"type": "function", "name": "f", "parameters": {}}],
        "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "text"}},
        "metadata": {"a": "b"},
        "store": True,
        "stream": False,
    },
}  # fmt: skip

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, 1e308, -1e308, "", " ", "x",
    "\x00", "é漢🌍", "none", "[DONE]", "x" * 4_000, [], [[]], [None], [""], [0], ["x", 1], {}, {"": ""}, {"a": None},
    {"type": "text"}, {"role": "user"}, [{"role": "user"}], {"x": {"x": {"x": []}}}, list(range(300)),
)  # fmt: skip


class Tally:
    """Sends requests and checks every answer."""

    def __init__(self, service: FakeService) -> None:
        self.service = service
        self.statuses: Counter[int] = Counter()

    def post(self, path: str, body: bytes) -> None:
        response = self.service.client.post(path, content=body, headers={"content-type": "application/json"})
        self.note(response.status_code, response.headers["content-type"], response.content, body)

    def note(self, status: int, content_type: str, answer: bytes, request: object) -> None:
        self.statuses[status] += 1
        assert status in (200, 400, 404), f"{status} for {request!r}: {answer[:500]!r}"
        if status >= 400:
            assert content_type == "application/json"
            assert set(json.loads(answer)["error"]) == {"message", "type", "param", "code"}, request


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    with fake_service(FakeOptions(context_length=300, eos_every=0)) as service:
        assert service.client.post(COMPLETIONS, json={"prompt": "x", "max_tokens": 2}).status_code == 200
        first = service.client.post(RESPONSES, json={"input": "x", "max_output_tokens": 2}).json()
        assert [first["id"], first["output"][0]["id"]] == [VALID[RESPONSES]["previous_response_id"], "msg_resp_3_0"]
        before = resources()
        counted = Tally(service)
        yield counted
        service.wait_until_idle()
        assert not service.events.of("FaultObserved")
        answer = service.client.post(CHAT, json={"messages": [{"role": "user", "content": "still there?"}]})
        assert answer.status_code == 200
        service.wait_until(lambda: resources().is_within(before), f"no more than {before}")


@pytest.mark.parametrize("path", VALID)
def test_valid_bodies_with_junk_somewhere(tally: Tally, path: str) -> None:
    """Most are refused, some are fine."""
    generator, before = random.Random(f"junk {path}"), tally.statuses.copy()
    for _ in range(NUM_MUTATED // 2):
        body = deepcopy(VALID[path])
        for _ in range(generator.choice((1, 1, 1, 2, 4))):
            _spoil(body, generator)
        tally.post(path, json.dumps(body).encode())
    assert tally.statuses[400] - before[400] > tally.statuses[200] - before[200] > 0


def _spoil(body: dict[str, Any], generator: random.Random) -> None:
    """Replace or remove one value anywhere in the tree."""
    places = list(_places(body))
    container, key = generator.choice(places)
    if generator.random() < 0.15:
        del container[key]
    else:
        container[key] = deepcopy(generator.choice(JUNK))


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for key in keys:
        yield node, key
        yield from _places(node[key])


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize(
    ("mode", "count"), [(GenerationMode.NEGATIVE, NUM_NEGATIVE), (GenerationMode.POSITIVE, NUM_POSITIVE)]
)
def test_what_schemathesis_makes_of_the_document(tally: Tally, path: str, mode: GenerationMode, count: int) -> None:
    document = tally.service.client.get("/schema/openapi.json").json()
    operation = schemathesis.openapi.from_dict(document)[path]["POST"]
    seen = 0

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case: Case) -> None:
        nonlocal seen
        seen += 1
        response = cast("Any", case.call(base_url=tally.service.base_url))
        tally.note(response.status_code, response.headers["content-type"][0], response.content, case.body)

    send()
    assert seen >= count // 2


@pytest.mark.parametrize("length", [1, 1_000, 100_000])
@pytest.mark.parametrize("piece", [b"[", b'{"messages":', b'{"prompt":[', b'"', b"\\u", b"9", b"-", b"\x00", b"\xf0"])
def test_one_piece_over_and_over(tally: Tally, piece: bytes, length: int) -> None:
    for path in (CHAT, COMPLETIONS):
        tally.post(path, piece * length)
        tally.post(path, b'{"messages":[{"role":"user","content":"x"}],"prompt":"x","n":' + piece * length + b"}")


LINKED = {"createResponse", "getResponse", "listInputItems", "deleteResponse", "tokenize", "detokenize"}
NUM_SCENARIOS, NUM_STEPS = 8, 8
MAX_ROUNDS = 20
"""One round in four misses a route."""

VALID_BODIES: dict[str, dict[str, Any]] = {
    "createResponse": {"model": DEFAULT_MODEL, "input": "hi", "max_output_tokens": 4},
    "tokenize": {"model": DEFAULT_MODEL, "prompt": "some text"},
}
"""Bodies that begin something; half of the time one that was drawn is sent instead, which seldom is as good."""

SETTINGS = settings(
    max_examples=NUM_SCENARIOS,
    stateful_step_count=NUM_STEPS,
    database=None,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def is_covered(statuses: Counter[tuple[str, int]]) -> bool:
    """Whether every linked route answered with something real, and something that was not there was asked for."""
    answered = {operation for operation, status in statuses if status == 200}
    return answered == LINKED and statuses["getResponse", 404] + statuses["deleteResponse", 404] > 0


def test_what_follows_from_answers() -> None:
    statuses: Counter[tuple[str, int]] = Counter()
    with fake_service(FakeOptions(context_length=300)) as service:
        document = service.client.get("/schema/openapi.json").json()
        document["paths"] = {
            path: {method: told for method, told in methods.items() if told["operationId"] in LINKED}
            for path, methods in document["paths"].items()
        }
        schema = schemathesis.openapi.from_dict(document)
        schema.config.update(base_url=service.base_url)
        machine: Any = schema.as_state_machine()

        class FollowUps(machine):  # type: ignore[misc]
            def before_call(self, case: Case) -> None:
                valid = VALID_BODIES.get(case.operation.definition.raw["operationId"])
                if valid is not None and len(repr(case.body)) % 2:
                    case.body = valid

            def validate_response(self, response: Response, case: Case, *_: Any, **__: Any) -> None:
                operation = case.operation.definition.raw["operationId"]
                statuses[operation, response.status_code] += 1
                assert response.status_code < 500 or response.status_code == 503, response.text
                if response.status_code >= 400:
                    assert "error" in response.json()

        for round_number in range(MAX_ROUNDS):
            seed(round_number)(FollowUps)
            run_state_machine_as_test(FollowUps, settings=SETTINGS)
            if is_covered(statuses):
                break
        service.wait_until_idle()
        assert not service.events.of("FaultObserved")
    assert is_covered(statuses), statuses
