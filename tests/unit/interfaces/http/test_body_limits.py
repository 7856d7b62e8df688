"""Limits of bodies: values are counted before they are decoded, and one client leaves room for others."""

import json
import random
from typing import Any

import pytest

from domain.errors import DomainError, InvalidRequest
from interfaces.http.incoming import json_body
from interfaces.http.incoming.json_body import (
    CONTAINER_NODES,
    MAX_NODES,
    body_decoder,
    check_nodes,
    num_nodes,
)
from interfaces.http.incoming.request_context import BodiesFull, BodyBudget
from interfaces.http.openai.chat_request import ChatCompletionRequest
from interfaces.http.responses.request import ResponsesRequest

MANY = MAX_NODES // CONTAINER_NODES


def nested(generator: random.Random, depth: int) -> Any:
    """A value of any kind, with text that looks like JSON itself."""
    match generator.randrange(6 if depth else 3):
        case 0:
            return generator.choice((None, True, -1, 1e308, 10**19))
        case 1 | 2:
            return "".join(generator.choices('[]{}",:\\ax\n', k=generator.randrange(12)))
        case 3 | 4:
            return [nested(generator, depth - 1) for _ in range(generator.randrange(5))]
        case _:
            return {
                f"{at}{generator.choice('[{,')}": nested(generator, depth - 1) for at in range(generator.randrange(5))
            }


def exact(value: Any) -> int:
    """What `num_nodes` counts, but for the commas."""
    if isinstance(value, dict):
        return CONTAINER_NODES + sum(1 + exact(item) for item in value.values()) + max(0, len(value) - 1)
    if isinstance(value, list):
        return CONTAINER_NODES + sum(map(exact, value)) + max(0, len(value) - 1)
    return int(isinstance(value, str))


def test_what_is_inside_of_strings_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(200):
        value = nested(random.Random(seed), 6)
        text = json.dumps(value).encode()
        monkeypatch.setattr(json_body, "MAX_NODES", MAX_NODES)
        assert num_nodes(text) >= exact(value)  # by bytes alone, while that is little
        monkeypatch.setattr(json_body, "MAX_NODES", exact(value))
        assert num_nodes(text) == exact(value), seed


class TestNodes:
    @pytest.mark.parametrize(
        "text",
        [
            b"[" + b"[]," * MANY + b"[]]",
            b"[" + b"{}," * MANY + b"{}]",
            b"[" * (MANY + 1) + b"]" * (MANY + 1),
            b'["' + b'","' * MAX_NODES + b'"]',
            b"[" + b"0," * MAX_NODES + b"0]",
            b'{"a":' * (MANY + 1),
        ],
        ids=["lists", "objects", "deep", "strings", "numbers", "unfinished"],
    )
    def test_too_many_are_refused(self, text: bytes) -> None:
        with pytest.raises(InvalidRequest, match="the body holds more than 1048576 values"):
            check_nodes(text)

    @pytest.mark.parametrize(
        "value",
        ["[{," * MAX_NODES, '\\"[' * MANY, list(range(MAX_NODES // 2)), [{"role": "user"}] * (MANY // 2)],
        ids=["text", "quotes", "token ids", "messages"],
    )
    def test_large_bodies_of_clients_are_decoded(self, value: Any) -> None:
        check_nodes(json.dumps(value).encode())

    def test_the_field_is_named(self) -> None:
        with pytest.raises(InvalidRequest) as caught:
            check_nodes(b"[" * (MANY + 1), "input[3]")
        assert caught.value.param == "input[3]"


@pytest.mark.parametrize("body_type", [ChatCompletionRequest, ResponsesRequest])
def test_nested_bodies_are_decoded_or_refused(body_type: type[Any]) -> None:
    decode = body_decoder(body_type)
    generator = random.Random(22)
    fields = ("messages", "input", "tools", "metadata", "chat_template_kwargs", "response_format", "unknown")
    for _ in range(300):
        body = {name: nested(generator, 5) for name in generator.sample(fields, 3)}
        text = json.dumps(body).encode().replace(b"null", b"[" * generator.choice((1, 2_000, MANY)))
        try:
            check_nodes(text)
            decode(text)
        except DomainError as error:
            assert isinstance(error, InvalidRequest)  # noqa: PT017


class TestBudget:
    def test_one_owner_has_half_of_it(self) -> None:
        budget = BodyBudget(16 << 20)
        half = budget.max_bytes // 2
        budget.take("ci", half)
        with pytest.raises(BodiesFull, match="your requests"):
            budget.take("ci", 1)
        budget.take("other", half)
        with pytest.raises(BodiesFull, match="the requests"):
            budget.take("third", 1)
        budget.release("ci", half)
        budget.take("third", 1)
        budget.release("third", 1)
        budget.release("other", half)
        assert budget.held_bytes == 0
        budget.take("ci", half)

    def test_a_few_of_the_largest_bodies_always_fit(self) -> None:
        assert BodyBudget(16 << 20).max_bytes == 256 << 20
        assert BodyBudget(1 << 30).max_bytes == 4 << 30
