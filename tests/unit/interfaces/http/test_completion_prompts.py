"""Token ids as a client sends them: rows from the parser on, and errors that name the field."""

import json

import pytest

from domain.errors import InvalidRequest
from domain.id_row import IdRow
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.openai.completions import CompletionRequest, plain_prompts

decode = body_decoder(CompletionRequest)

IDS = [1000 + number % 7 for number in range(700)]


def body_of(prompt: object) -> CompletionRequest:
    return decode(json.dumps({"model": "m", "prompt": prompt}).encode())


@pytest.mark.parametrize("prompt", [IDS, [IDS], [IDS, IDS[:9]], ["text", IDS]], ids=["one", "row", "rows", "beside"])
def test_ids_lie_in_rows_from_the_parser_on(prompt: list[object]) -> None:
    body = body_of(prompt)
    assert body.prompt == prompt
    lists = [body.prompt] if prompt is IDS else [item for item in body.prompt if not isinstance(item, str)]
    assert lists
    assert all(isinstance(row, IdRow) for row in lists)
    told = [getattr(one, "token_ids", None) or getattr(one, "text", None) for one in plain_prompts(body)]
    assert told == ([IDS] if prompt is IDS else prompt)


@pytest.mark.parametrize(
    ("prompt", "field", "why"),
    [
        ([], "prompt", "must not be empty"),
        ([3, -1], "prompt", "no token id"),
        ([3, 1 << 32], "prompt", "no token id"),
        ([[3, 4], [1, 1 << 70]], "prompt[1]", "no token id"),
        (["text", [-1]], "prompt[1]", "no token id"),
        ([[3, 4], 5], "prompt[1]", "mixes"),
        ([5, "text"], "prompt[0]", "mixes"),
    ],
)
def test_what_is_no_prompt_is_refused_by_name(prompt: list[object], field: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        plain_prompts(body_of(prompt))
    assert refused.value.param == field


@pytest.mark.parametrize(
    ("prompt", "field"), [([1.5], "prompt[0]"), ([True], "prompt[0]"), ([[1], [2, "a"]], "prompt[1][1]"), (7, "prompt")]
)
def test_what_has_no_form_of_a_prompt_is_refused_by_the_parser(prompt: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode(json.dumps({"model": "m", "prompt": prompt}).encode())
    assert refused.value.param == field


def test_too_many_prompts_are_refused_before_they_are_looked_at() -> None:
    """Half a million of them stopped the event loop for a second."""
    with pytest.raises(InvalidRequest, match="prompts times n exceed 128"):
        plain_prompts(body_of(["text"] * 200 + [5]))


def test_too_many_biases_are_refused_before_they_are_looked_at() -> None:
    body = decode(
        json.dumps({"model": "m", "prompt": "x", "logit_bias": dict.fromkeys(map(str, range(-1, 2_000)), 1)}).encode()
    )
    with pytest.raises(InvalidRequest, match="logit_bias has more than 1024 entries"):
        body.sampling()
