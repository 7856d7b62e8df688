"""The official `openai` and `anthropic` packages drive a server over a socket, on the toy engine.

test_tool_loops drives the embedded models.
"""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.http.recorder import Recorder
from tests.support.http.servers.live_service import LiveService, live_service

KEY = "test-key"


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    settings = Settings(
        server=ServerSettings(port=0, api_key=KEY),
        model=ModelSettings(default="fake-attention", download=False),
        engine=EngineSettings(backend="fake", queue=8),
        store=StoreSettings(kind="off"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with live_service(settings) as running:
            yield running


@pytest.fixture
def claude(live: LiveService) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=live.base_url, api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def client(live: LiveService) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.base_url}/v1", api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def say(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


def test_a_chat(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=say("Hello"), max_tokens=8, temperature=0, logprobs=True, top_logprobs=2
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


def test_a_chat_and_its_stream_say_the_same(client: openai.OpenAI, model: str) -> None:
    wanted: dict[str, Any] = {
        "model": model, "messages": say("Hello there"), "max_tokens": 24, "temperature": 0
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


def test_every_answer_and_event_is_read_by_the_official_models(
    client: openai.OpenAI, model: str, recorder: Recorder
) -> None:
    before = recorder.num_checked
    client.chat.completions.create(model=model, messages=say("Hello"), max_tokens=2)
    chunks = list(client.chat.completions.create(model=model, messages=say("Hello"), max_tokens=2, stream=True))
    assert recorder.num_checked == before + 1 + len(chunks)


def test_text_completions(client: openai.OpenAI, model: str) -> None:
    wanted: dict[str, Any] = {
        "model": model, "prompt": ["One", "Two"], "n": 2, "max_tokens": 6, "temperature": 0, "echo": True
    }  # fmt: skip
    plain = client.completions.create(**wanted)
    assert [choice.index for choice in plain.choices] == [0, 1, 2, 3]
    assert [choice.text[:3] for choice in plain.choices] == ["One", "One", "Two", "Two"]
    texts = [""] * 4
    for chunk in client.completions.create(**wanted, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in plain.choices]


def test_openais_errors_become_the_clients_own_exceptions(client: openai.OpenAI, live: LiveService, model: str) -> None:
    with pytest.raises(openai.BadRequestError, match="messages") as refused:
        client.chat.completions.create(model=model, messages=[])
    assert refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError) as overflow:
        client.chat.completions.create(model=model, messages=say("x " * 200_000))
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


TOOL: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def test_a_message_and_its_stream_say_the_same(claude: anthropic.Anthropic, model: str) -> None:
    wanted: dict[str, Any] = {
        "model": model,
        "max_tokens": 16,
        "extra_body": {"temperature": 0},  # the package has no parameter for it any more
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": "Hello"}],
        "tools": [{"name": "read", "description": "Read a file.", "input_schema": TOOL}],
    }
    whole = claude.messages.create(**wanted)
    assert (whole.type, whole.role, whole.model) == ("message", "assistant", model)
    with claude.messages.stream(**wanted) as stream:
        events = list(stream)
        streamed = stream.get_final_message()
    assert events[0].type == "message_start"
    assert [block.to_dict() for block in streamed.content] == [block.to_dict() for block in whole.content]
    assert (streamed.stop_reason, streamed.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    assert streamed.id != whole.id
    counted = claude.messages.count_tokens(**{key: wanted[key] for key in ("model", "system", "messages", "tools")})
    assert counted.input_tokens == whole.usage.input_tokens + (whole.usage.cache_read_input_tokens or 0)


def test_anthropics_errors_become_the_clients_own_exceptions(claude: anthropic.Anthropic, live: LiveService) -> None:
    hello: Any = [{"role": "user", "content": "x"}]
    with pytest.raises(anthropic.BadRequestError, match="tool_choice"):
        claude.messages.create(model="", max_tokens=5, messages=hello, tool_choice={"type": "any"})
    with pytest.raises(anthropic.NotFoundError, match="no-such-model"):
        claude.messages.create(model="no-such-model", max_tokens=5, messages=hello)
    with (
        anthropic.Anthropic(base_url=live.base_url, api_key="wrong", max_retries=0) as stranger,
        pytest.raises(anthropic.AuthenticationError) as refused,
    ):
        stranger.messages.create(model="m", max_tokens=5, messages=hello)
    assert refused.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]


def test_a_response_and_its_stream_say_the_same(client: openai.OpenAI, model: str) -> None:
    wanted: dict[str, Any] = {
        "model": model,
        "max_output_tokens": 16,
        "temperature": 0,
        "instructions": "Be brief.",
        "input": [{"role": "developer", "content": "Speak English."}, {"role": "user", "content": "Hello"}],
        "tools": [{"type": "function", "name": "read", "parameters": TOOL, "strict": False}, {"type": "web_search"}],
        "include": ["reasoning.encrypted_content"],
        "store": False,
    }
    whole = client.responses.create(**wanted)
    assert (whole.object, whole.model) == ("response", model)
    assert whole.usage is not None
    with client.responses.stream(**wanted) as stream:
        types = [event.type for event in stream]
        streamed = stream.get_final_response() if types[-1] == "response.completed" else None
    assert types[0] == "response.created"
    assert types[-1] == f"response.{whole.status}"
    if streamed is not None:
        assert streamed.output_text == whole.output_text
        assert streamed.usage is not None
        assert streamed.usage.total_tokens == whole.usage.total_tokens


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of users' messages, see `SENT_BY_OPENAI`
def test_a_compacted_conversation_goes_on(client: openai.OpenAI, model: str) -> None:
    history: Any = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi."}]
    compacted = client.responses.compact(model=model, input=history)
    assert [item.type for item in compacted.output] == ["message", "compaction"]
    kept: Any = compacted.output  # as OpenAI's documentation passes it on
    question: Any = {"role": "user", "content": "And now?"}
    assert client.responses.create(model=model, input=[*kept, question], max_output_tokens=4).output_text
    edits: Any = [{"type": "compaction", "compact_threshold": 1}]
    managed = client.responses.create(model=model, input=[*history, question], context_management=edits)
    assert [item.type for item in managed.output] == ["compaction", "message"]


def test_responses_errors_become_the_clients_own_exceptions(client: openai.OpenAI, model: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=model, input="x", previous_response_id="resp_1")
    assert refused.value.param == "previous_response_id"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.responses.create(model="no-such-model", input="x")
    assert unknown.value.code == "model_not_found"
