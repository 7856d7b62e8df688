"""What is told of a chat with another end is what the template writes of all of it, whatever the template does."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from adapters.tokenizers.chat_template import ChatTemplate
from adapters.tokenizers.fork_points import likely_requests
from adapters.tokenizers.local_template import names_of_messages
from domain.chat import ChatMessage, Role, ToolSpec
from domain.errors import TemplateFailed
from domain.request import ChatPrompt
from tests.support.effort import scaled
from tests.support.template_pieces import AFTER, BEFORE, LOCAL, LOOPS, TOOLS, WHOLE, WITHIN, applied, chats, messages

Tools = tuple[ToolSpec, ...]


@lru_cache(100)
def both(source: str) -> tuple[ChatTemplate, ChatTemplate]:
    """One that may cut, and one that may not."""
    return (
        ChatTemplate(applied(source), source, is_source_all=True),
        ChatTemplate(applied(source), source),
    )


def texts(template: ChatTemplate, prompt: ChatPrompt, others: Sequence[Sequence[ChatMessage]]) -> list[str | None]:
    """Of the prompt and of each of the others; None for what is refused."""
    try:
        rendered = template.render(prompt)
    except TemplateFailed as failed:
        return [str(failed)]
    found: list[str | None] = [rendered.text]
    for other in others:
        try:
            found.append(template.text_beside(rendered, other))
        except Exception:
            found.append(None)
    return found


def check(source: str, chat: tuple[ChatMessage, ...], tools: Tools, end: Sequence[ChatMessage], kept: int) -> None:
    continues = chat[-1].role is Role.ASSISTANT and not chat[-1].tool_calls and kept % 2 == 0
    prompt = ChatPrompt(chat, tools, continues=continues)
    others = [other for _, other in likely_requests(prompt, 3)]
    others += [(*chat[: len(chat) - kept], *end), (*chat, *end), chat]
    cutting, whole = (texts(template, prompt, others) for template in both(source))
    assert cutting == whole


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=scaled(40))
@given(chat=chats(), tools=TOOLS, end=st.lists(messages(), max_size=3), kept=st.integers(0, 6))
def test_known_templates(name: str, chat: tuple[ChatMessage, ...], tools: Tools, end: list[ChatMessage], kept: int):
    check(WHOLE[name], chat, tools, [*end, ChatMessage(Role.USER, "so")], kept)


def spliced_sources() -> st.SearchStrategy[str]:
    parts = st.lists(st.sampled_from(WITHIN), min_size=1, max_size=3).map("".join)
    before = st.lists(st.sampled_from(BEFORE), max_size=2).map("".join)
    looped = st.builds("{{% {} %}}{}|{{% endfor %}}".format, st.sampled_from(LOOPS), parts)
    return st.builds("{}{}{}".format, before, looped, st.sampled_from(AFTER))


@given(source=spliced_sources(), chat=chats(), end=st.lists(messages(), max_size=3), kept=st.integers(0, 6))
def test_templates_put_together(source: str, chat: tuple[ChatMessage, ...], end: list[ChatMessage], kept: int):
    check(source, chat, (), [*end, ChatMessage(Role.USER, "so")], kept)


def local_alone(pieces: Sequence[str], framed: str) -> list[str]:
    return [piece for piece in pieces if names_of_messages(framed.replace("PIECE", piece)) is not None]


_NAMES = "{% set turns = messages %}{% set ns = namespace(n=0, last='') %}"
_LOOP = "{% for m in messages %}PIECE{% endfor %}"


def local_sources() -> st.SearchStrategy[str]:
    """Most of them are."""
    before = st.lists(st.sampled_from(local_alone(BEFORE, "PIECE" + _LOOP)), max_size=2, unique=True).map("".join)
    loops = local_alone(LOOPS, _NAMES + "{% PIECE %}{% endfor %}")
    within = st.lists(st.sampled_from(local_alone(WITHIN, _NAMES + _LOOP)), min_size=1, max_size=3).map("".join)
    after = local_alone(AFTER, _LOOP + "PIECE")
    looped = st.builds("{{% {} %}}{}|{{% endfor %}}".format, st.sampled_from(loops), within)
    return st.builds("{}{}{}{}".format, st.just(_NAMES), before, looped, st.sampled_from(after))


@given(source=local_sources(), chat=chats(), end=st.lists(messages(), max_size=3), kept=st.integers(0, 6))
def test_pieces_that_are_taken_for_local(source: str, chat: tuple[ChatMessage, ...], end: list[ChatMessage], kept: int):
    check(source, chat, (), [*end, ChatMessage(Role.USER, "so")], kept)


class Counting:
    """Counts the messages that a template is given."""

    def __init__(self, apply: Callable[..., str]) -> None:
        self._apply = apply
        self.num_messages: list[int] = []

    def __call__(self, conversation: list[dict[str, Any]], **options: Any) -> str:
        self.num_messages.append(len(conversation))
        return self._apply(conversation, **options)


@pytest.mark.parametrize("name", sorted(LOCAL - {"NO_TOOLS", "SHOWS_FIELDS"}))
def test_of_a_long_chat_one_rendering_is_whole(name: str):
    counting = Counting(applied(WHOLE[name]))
    template = ChatTemplate(counting, WHOLE[name], is_source_all=True)
    turn = ChatMessage(Role.USER, "Why?"), ChatMessage(Role.ASSISTANT, "Therefore.")
    prompt = ChatPrompt((*turn * 200, ChatMessage(Role.USER, "And?")))
    counting.num_messages.clear()
    rendered = template.render(prompt)
    others = [other for _, other in likely_requests(prompt, 3)]
    for other in others:
        template.text_beside(rendered, other)
    long = [number for number in counting.num_messages if number > 40]
    assert len(others) >= 6
    assert set(long) == {len(prompt.messages)}
    assert len(long) <= 2, "one more where plain content is not shown"


def test_a_client_that_names_its_own_messages_has_them_rendered_whole():
    source = "{% set other = messages %}{% for m in other %}{{ m.content }}{% endfor %}"
    counting = Counting(applied(source))
    template = ChatTemplate(counting, source, is_source_all=True)
    prompt = ChatPrompt((ChatMessage(Role.USER, "x"),) * 100, (), {"other": []})
    rendered = template.render(prompt)
    template.text_beside(rendered, (*prompt.messages, ChatMessage(Role.USER, "y")))
    assert counting.num_messages[-1] == 101
