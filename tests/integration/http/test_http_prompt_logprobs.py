"""Log probabilities of prompts over a socket, on the toy engine: echoed, listed, streamed, counted, bounded."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from application.use_cases import generate
from tests.support.http.clients import completion_text, events
from tests.support.http.servers.fake_service import FakeService, fake_service

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TEXT = "an evaluation's prompt, long enough for several chunks of any grid " * 20


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(eos_every=0), reuses=True) as running:
        yield running


def post(service: FakeService, path: str = COMPLETIONS, **body: Any) -> Any:
    response = service.client.post(path, json={"temperature": 0, **body})
    assert response.status_code == 200, response.text
    return response.json()


def streamed(service: FakeService, path: str = COMPLETIONS, **body: Any) -> list[Any]:
    response = service.client.post(path, json={"temperature": 0, **body, "stream": True})
    assert response.status_code == 200, response.text
    return events(response.text)


def refused(service: FakeService, path: str = COMPLETIONS, **body: Any) -> Any:
    response = service.client.post(path, json=body)
    assert response.status_code == 400, response.text
    return response.json()["error"]


def joined(chunks: list[Any], index: int) -> dict[str, list[Any]]:
    """A streamed choice's `logprobs`."""
    found: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        for name, values in (choice["logprobs"] or {}).items():
            found[name] += values
    return found


def test_an_echoed_prompt_has_log_probabilities_like_the_answer(service: FakeService) -> None:
    """As lm-eval asks: many prompts of token ids, one token behind each, which it leaves out of account."""
    prompts = [list(TEXT.encode()), [97, 98, 99], [97]]
    body = {"prompt": prompts, "echo": True, "logprobs": 1, "max_tokens": 1, "seed": 1234, "temperature": 0}
    answer = post(service, **body)
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        logprobs = choice["logprobs"]
        assert {len(values) for values in logprobs.values()} == {len(prompt) + 1}
        assert "".join(logprobs["tokens"]) == choice["text"]
        assert choice["text"].startswith(bytes(prompt).decode())
        assert logprobs["text_offset"] == list(range(len(prompt) + 1))
        assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
        assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
        pairs = zip(logprobs["tokens"][1:], logprobs["top_logprobs"][1:], strict=True)
        assert all(token in top and len(top) in (1, 2) for token, top in pairs)
        assert max(logprobs["top_logprobs"][-1].values()) == logprobs["token_logprobs"][-1], "greedy"
    chunks = streamed(service, **body)
    assert [joined(chunks, index) for index in range(3)] == [choice["logprobs"] for choice in answer["choices"]]
    assert [completion_text(chunks, index) for index in range(3)] == [choice["text"] for choice in answer["choices"]]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_prompt_logprobs_list_the_token_and_the_likeliest_by_id(service: FakeService, path: str) -> None:
    asked: dict[str, Any] = (
        {"prompt": TEXT} if path == COMPLETIONS else {"messages": [{"role": "user", "content": TEXT}]}
    )
    body = {"path": path, **asked, "prompt_logprobs": 2, "max_tokens": 2, "return_token_ids": True}
    answer = post(service, **body)
    told = answer["choices"][0] if path == COMPLETIONS else answer
    entries, prompt_ids = told["prompt_logprobs"], told["prompt_token_ids"]
    assert len(entries) == len(prompt_ids) == answer["usage"]["prompt_tokens"]
    assert entries[0] is None
    for token_id, entry in zip(prompt_ids[1:], entries[1:], strict=True):
        own = entry[str(token_id)]
        assert set(own) == {"logprob", "rank", "decoded_token"}
        best = sorted(entry.values(), key=lambda one: one["rank"])
        assert [one["rank"] for one in best[:2]] == [1, 2]
        assert best[0]["logprob"] >= best[1]["logprob"] >= own["logprob"] or own["rank"] <= 2
    chunks = streamed(service, **body)
    parts = [choice for chunk in chunks for choice in chunk["choices"]] if path == COMPLETIONS else chunks
    assert [entry for part in parts for entry in part.get("prompt_logprobs", [])] == entries


def test_both_kinds_at_once_each_with_its_own_number(service: FakeService) -> None:
    choice = post(service, prompt="abcdef", echo=True, logprobs=0, prompt_logprobs=3, max_tokens=1)["choices"][0]
    assert [len(entry) for entry in choice["prompt_logprobs"][1:]] == [4] * 5 or all(
        3 <= len(entry) <= 4 for entry in choice["prompt_logprobs"][1:]
    )
    assert [list(top) for top in choice["logprobs"]["top_logprobs"][1:]] == [
        [token] for token in choice["logprobs"]["tokens"][1:]
    ]


def test_several_choices_of_several_prompts_have_their_prompts_scores(service: FakeService) -> None:
    body = {"prompt": ["abc", "xyz"], "n": 3, "echo": True, "logprobs": 1, "max_tokens": 2}
    answer = post(service, **body)
    firsts = [choice["logprobs"]["token_logprobs"][:3] for choice in answer["choices"]]
    assert firsts[:3] == [firsts[0]] * 3
    assert firsts[3:] == [firsts[3]] * 3
    assert [len(choice["logprobs"]["tokens"]) for choice in answer["choices"]] == [5] * 6
    chunks = streamed(service, **body)
    assert [joined(chunks, index) for index in range(6)] == [choice["logprobs"] for choice in answer["choices"]]


def test_no_token_at_all_may_be_asked_for(service: FakeService) -> None:
    choice = (answer := post(service, prompt="abc", echo=True, logprobs=1, max_tokens=0))["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("abc", "length")
    assert len(choice["logprobs"]["tokens"]) == 3
    assert answer["usage"]["completion_tokens"] == 0
    body = {"prompt": "abc", "prompt_logprobs": 0, "max_tokens": 0}
    assert len(post(service, **body)["choices"][0]["prompt_logprobs"]) == 3
    last = streamed(service, **body)[-1]["choices"][0]
    assert last["finish_reason"] == "length"
    service.wait_until_idle()


def test_nothing_is_reused_and_the_header_and_explain_say_why(service: FakeService) -> None:
    body = {"prompt": TEXT, "max_tokens": 1}
    for _ in range(2):
        response = service.client.post(COMPLETIONS, json={**body, "prompt_logprobs": 0})
        header = f"reused=0; live=0; hot=0; store=0; computed={len(TEXT)}; reason=scored"
        assert response.headers["x-cairn-cache"] == header
        assert response.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    told = service.client.post("/v1/cache/explain", json={**body, "echo": True, "logprobs": 1}).json()["prompts"][0]
    assert (told["reason"], told["computed_tokens"]) == ("scored", len(TEXT))
    assert post(service, **body)["usage"]["prompt_tokens_details"] == {"cached_tokens": len(TEXT) - 1}
    warmed = service.client.post("/v1/cache/warm", json={**body, "prompt_logprobs": 0}).json()["prompts"][0]
    assert warmed["computed_tokens"] == 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (COMPLETIONS, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
        (CHAT, {"prompt_logprobs": 21}, "prompt_logprobs"),
        (COMPLETIONS, {"echo": True, "logprobs": 21}, "logprobs"),
        (COMPLETIONS, {"max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        (CHAT, {"max_completion_tokens": 0}, "max_completion_tokens"),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(
    service: FakeService, path: str, body: dict[str, Any], param: str
) -> None:
    asked: dict[str, Any] = {"prompt": "x"} if path == COMPLETIONS else {"messages": [{"role": "user", "content": "x"}]}
    assert refused(service, path, **asked, **body)["param"] == param


def test_an_answer_that_would_be_too_large_is_refused_as_a_whole(
    service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "MAX_PROMPT_LOGPROBS", 40)
    assert len(post(service, prompt=["a" * 10, "b" * 10], echo=True, logprobs=1, max_tokens=1)["choices"]) == 2
    for body in (
        {"prompt": ["a" * 10, "b" * 11], "echo": True, "logprobs": 1},
        {"prompt": "a" * 10, "n": 3, "echo": True, "logprobs": 1},
        {"prompt": "a" * 10, "echo": True, "logprobs": 20},
    ):
        error = refused(service, **body)
        assert error["param"] == "logprobs"
        assert "at most 40" in error["message"]
    assert refused(service, prompt="a" * 21, prompt_logprobs=1)["param"] == "prompt_logprobs"
    service.wait_until_idle()
