"""Chat templates are rendered as transformers renders them, and no further than the bound."""

from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.tokenizers.jinja_template import JinjaTemplate, RenderingTooLong
from adapters.tokenizers.library import load_tokenizer
from adapters.tokenizers.template_messages import (
    Adjustments,
    TemplateTraits,
    messages_for_template,
    tools_for_template,
)
from domain.request.chat import ChatMessage, ToolSpec
from tests.support.effort import scaled
from tests.support.mlx.template_pieces import TOOLS, WHOLE, chats
from tests.support.mlx.tiny_tokenizers import byte_level, write_folder

PECULIAR = {
    "tokens": "{{ bos_token }}|{{ eos_token }}|{{ documents is none }}|{{ add_generation_prompt }}",
    "refused": "{{ raise_exception('no') }}",
    "broken": "{% if %}",
}


@cache
def library(name: str) -> Any:
    source = {**WHOLE, **PECULIAR}[name]
    return load_tokenizer(str(write_folder(Path(mkdtemp()) / "model", byte_level(), source, bos_token="<s>")))


def outcome(render: Any, *args: Any, **options: Any) -> str:
    try:
        return str(render(*args, **options))
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("name", [*WHOLE, *PECULIAR])
@settings(max_examples=scaled(10))
@given(chat=chats(), tools=TOOLS, opens=st.booleans(), tone=st.sampled_from([None, "calm"]))
def test_renderings_are_those_of_transformers(
    name: str, chat: tuple[ChatMessage, ...], tools: tuple[ToolSpec, ...], opens: bool, tone: str | None
):
    python = library(name)
    template = JinjaTemplate(python.chat_template, python.special_tokens_map)
    messages = messages_for_template(chat, TemplateTraits(knows_developer=True), Adjustments())
    options: Any = {"tools": tools_for_template(tools), "add_generation_prompt": opens, "tone": tone}
    expected = outcome(python.apply_chat_template, messages, tokenize=False, **options)
    assert outcome(template, messages, **options) == expected


def test_a_rendering_stops_at_its_bound():
    template = JinjaTemplate("{% for i in range(100000) %}{{ messages[0].content }}{% endfor %}", {})
    messages = [{"role": "user", "content": "x" * 1000}]
    with pytest.raises(RenderingTooLong) as stopped:
        template(messages, tools=None, add_generation_prompt=False, max_chars=5_000)
    assert stopped.value.num_chars == 6_000


def test_every_name_that_is_passed_or_global_is_reserved():
    reserved = JinjaTemplate("", {"image_token": "<image>"}).reserved
    given = {"bos_token", "eos_token", "image_token", "messages", "tools", "documents", "add_generation_prompt"}
    functions = {"range", "dict", "namespace", "lipsum", "cycler", "joiner", "raise_exception", "strftime_now"}
    assert given | functions <= reserved
