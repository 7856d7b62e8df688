"""The official `openai` package drives a server over a socket: the toy engine, and the embedded model."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.effort import scaled
from tests.support.http.servers.live_service import LiveService, live_service

KEY = "test-key"
WORDS = Path(__file__).parents[3] / "training" / "text" / "words.json"


def settings_for(backend: str, model: str) -> Settings:
    return Settings(
        server=ServerSettings(port=0, api_key=KEY),
        model=ModelSettings(default=model, download=False),
        engine=EngineSettings(backend=backend, queue=8),
        store=StoreSettings(kind="off"),
    )


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with live_service(settings_for("fake", "fake-attention")) as running:
            yield running


@pytest.fixture
def client(live: LiveService) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.base_url}/v1", api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def only_model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=only_model(client), messages=say("Hello"), max_tokens=8, temperature=0, logprobs=True, top_logprobs=2
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details is not None
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or []) == answer.usage.completion_tokens
    assert answer._request_id


def test_a_stream_says_what_the_plain_answer_says(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {
        "model": only_model(client), "messages": say("Hello there"), "max_tokens": 24, "temperature": 0
    }  # fmt: skip
    plain = client.chat.completions.create(**wanted)
    chunks = list(client.chat.completions.create(**wanted, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == (
        plain.choices[0].message.content
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == plain.choices[0].finish_reason
    assert chunks[-1].usage is not None
    assert plain.usage is not None
    assert chunks[-1].usage.completion_tokens == plain.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1


def test_text_completions(client: openai.OpenAI) -> None:
    wanted: dict[str, Any] = {
        "model": only_model(client), "prompt": ["One", "Two"], "n": 2, "max_tokens": 6, "temperature": 0, "echo": True
    }  # fmt: skip
    plain = client.completions.create(**wanted)
    assert [choice.index for choice in plain.choices] == [0, 1, 2, 3]
    assert [choice.text[:3] for choice in plain.choices] == ["One", "One", "Two", "Two"]
    texts = [""] * 4
    for chunk in client.completions.create(**wanted, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in plain.choices]


def test_errors_become_the_clients_own_exceptions(client: openai.OpenAI, live: LiveService) -> None:
    model = only_model(client)
    with pytest.raises(openai.BadRequestError, match="messages") as refused:
        client.chat.completions.create(model=model, messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as overflow:
        client.chat.completions.create(model=model, messages=say("x"), max_tokens=10**9)
    assert overflow.value.code == "context_length_exceeded"
    with pytest.raises(openai.NotFoundError, match=model) as unknown:
        client.chat.completions.create(model="no-such-model", messages=say("x"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")
    with (
        openai.OpenAI(base_url=f"{live.base_url}/v1", api_key="wrong", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError),
    ):
        stranger.models.list()


def facts(count: int) -> dict[str, str]:
    """Things nobody can guess, the same ones every time, of the kind the embedded models were trained to recall."""
    generator = random.Random(4)
    words: list[str] = json.loads(WORDS.read_text())
    return {key: str(generator.randint(10, 99_999)) for key in generator.sample(words, count)}


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with (
            live_service(settings_for("mlx", "cairn-demo")) as running,
            openai.OpenAI(base_url=f"{running.base_url}/v1", api_key=KEY, max_retries=0, timeout=800) as client,
        ):
            yield client


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cairn-demo", "cairn-demo-hybrid"])
def test_the_embedded_models_recall_facts_from_a_long_context(embedded: openai.OpenAI, model: str) -> None:
    """What the model cards call reliable, out of up to 700 tokens; one answer may be wrong."""
    known = facts(min(75, scaled(40)))
    listing = "Here is a list.\n" + "\n".join(f"- {key}: {value}" for key, value in known.items())
    asked = list(known)[3 :: len(known) // 3]
    assert len(asked) == 3
    right, prompt_tokens = 0, 0
    for key in asked:
        answer = embedded.chat.completions.create(
            model=model,
            messages=say(f"{listing}\n\nWhat is the value of {key}?"),
            temperature=0,
            max_tokens=12,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        assert answer.usage is not None
        prompt_tokens = answer.usage.prompt_tokens
        right += (answer.choices[0].message.content or "").strip() == known[key]
    assert prompt_tokens >= 9 * len(known)
    assert right >= len(asked) - 1, f"{right} of {len(asked)}"
