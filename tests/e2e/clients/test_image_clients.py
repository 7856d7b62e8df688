"""The official `openai` and `anthropic` packages send images to a server on a toy model that sees real pictures."""

from collections.abc import Iterator
from typing import Any

import anthropic
import openai
import pytest

from tests.support.http.hostile_images import picture
from tests.support.http.images import anthropic_block, data_url, picture_service
from tests.support.http.servers.fake_service import FakeService

SMALL, LARGE = picture("PNG", (64, 64)), picture("JPEG", (640, 320))
NUM_MORE = 10 * 5 - 1
"""Tokens of the large picture beyond those of the small one."""


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with picture_service(reuses=True) as running:
        yield running


@pytest.fixture
def client(service: FakeService) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="k", max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture
def claude(service: FakeService) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=service.base_url, api_key="k", max_retries=0, timeout=120) as made:
        yield made


def test_chat_completions(client: openai.OpenAI, service: FakeService) -> None:
    def asked(data: bytes, **options: Any) -> Any:
        part: Any = {"type": "image_url", "image_url": {"url": data_url(data), "detail": "high"}}
        content = [{"type": "text", "text": "What is this?"}, part]
        return client.chat.completions.create(
            model=service.model, messages=[{"role": "user", "content": content}], max_tokens=9, **options
        )

    small, large = asked(SMALL), asked(LARGE)
    assert large.usage.prompt_tokens - small.usage.prompt_tokens == NUM_MORE
    assert large.usage.prompt_tokens_details.image_tokens == NUM_MORE + 1
    assert large.choices[0].message.content == "I see."
    streamed = list(asked(LARGE, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices) == "I see."
    assert streamed[-1].usage.prompt_tokens_details.image_tokens == NUM_MORE + 1
    with pytest.raises(openai.BadRequestError, match="it is no PNG, JPEG, WebP or GIF file") as refused:
        asked(b"%PDF-1.7")
    assert refused.value.param == "messages[0].content[1].image_url.url"


def test_responses(client: openai.OpenAI, service: FakeService) -> None:
    part: Any = {"type": "input_image", "image_url": data_url(LARGE), "detail": "auto"}
    first = client.responses.create(
        model=service.model,
        input=[{"role": "user", "content": [part, {"type": "input_text", "text": "What is this?"}]}],
    )
    assert first.output_text == "I see."
    then = client.responses.create(model=service.model, input="And now?", previous_response_id=first.id)
    assert first.usage is not None
    assert then.usage is not None
    assert then.usage.input_tokens > first.usage.input_tokens
    assert then.usage.input_tokens_details.model_extra == {"image_tokens": NUM_MORE + 1}


def test_messages(claude: anthropic.Anthropic, service: FakeService) -> None:
    def counted(data: bytes) -> int:
        return claude.messages.count_tokens(model=service.model, messages=conversation(data)).input_tokens

    def conversation(data: bytes) -> Any:
        result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [anthropic_block(data)]}
        return [
            {"role": "user", "content": "Take a screenshot."},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "shoot", "input": {}}]},
            {"role": "user", "content": [result]},
        ]

    assert counted(LARGE) - counted(SMALL) == NUM_MORE
    with claude.messages.stream(model=service.model, max_tokens=9, messages=conversation(LARGE)) as stream:
        assert stream.get_final_text() == "I see."
    usage = stream.get_final_message().usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted(LARGE)
