"""Token ids as a client sends them: the same ids, and no number held for each of them."""

import json

import msgspec
import pytest

from interfaces.http.openai.completion_request import CompletionRequest, plain_prompts

IDS = [1000 + number % 7 for number in range(700)]


@pytest.mark.parametrize("prompt", [IDS, [IDS, IDS[:9]], ["text", IDS]], ids=["one", "several", "beside text"])
def test_each_number_of_a_prompt_is_held_once(prompt: list[object]) -> None:
    data = json.dumps({"model": "m", "prompt": prompt})
    body = msgspec.json.decode(data, type=CompletionRequest)
    assert body.prompt == prompt
    rows = [item for item in body.prompt if isinstance(item, list)] or [body.prompt]
    assert all(len({id(number) for number in row}) == 7 for row in rows)
    assert len(plain_prompts(body)) == (1 if prompt is IDS else 2)
