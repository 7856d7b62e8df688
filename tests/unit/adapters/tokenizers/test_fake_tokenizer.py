"""The toy tokenizer: any text comes back, templates fork where they should."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fake import FakeTokenizer
from application.ports.tokenizer import EncodedPrompt
from domain.errors import TemplateFailed
from domain.prefix.prompt_content import ForkKind
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.request import ChatPrompt

SYSTEM = ChatMessage(Role.SYSTEM, "Be brief.")
USER = ChatMessage(Role.USER, "2 + 2?")
THOUGHT = ChatMessage(Role.ASSISTANT, "4", reasoning="Two and two.")


def render(*messages: ChatMessage, tools: tuple[ToolSpec, ...] = (), thinks: bool = False) -> EncodedPrompt:
    return FakeTokenizer(thinks=thinks).render(ChatPrompt(messages, tools))


def text_of(prompt: EncodedPrompt) -> str:
    return FakeTokenizer().decode(prompt.token_ids)


@given(st.text())
def test_text_round_trips_whole_and_streamed(text: str) -> None:
    tokenizer = FakeTokenizer()
    text = text.encode("utf-8", errors="replace").decode()
    token_ids = tokenizer.encode(text).token_ids
    detokenizer = tokenizer.detokenizer()
    assert tokenizer.decode(token_ids) == text
    assert "".join([detokenizer.feed(token) for token in token_ids]) + detokenizer.flush() == text


def test_the_next_turn_is_a_prefix_up_to_its_fork_point() -> None:
    for thinks in (False, True):
        prompt = render(SYSTEM, USER, thinks=thinks)
        fork = next(fork.position for fork in prompt.fork_points if fork.kind is ForkKind.NEXT_TURN)
        longer = render(SYSTEM, USER, THOUGHT, USER, thinks=thinks)
        assert longer.token_ids[:fork] == prompt.token_ids[:fork]
        if thinks:
            assert fork == len(prompt.token_ids) - len("<think>\n")
            assert "Two and two." not in text_of(longer)


def test_system_and_tools_end_in_one_fork_point() -> None:
    prompt = render(SYSTEM, USER, tools=(ToolSpec("add", "adds", {"type": "object"}),))
    ends = [fork.position for fork in prompt.fork_points if fork.kind is ForkKind.SYSTEM_END]
    assert FakeTokenizer().decode(prompt.token_ids[: ends[-1]]).endswith("Be brief.<|end|>\n")
    assert len(ends) == 1
    positions = [fork.position for fork in prompt.fork_points]
    assert positions == sorted(set(positions))


def test_user_text_cannot_spell_special_tokens() -> None:
    prompt = render(ChatMessage(Role.USER, "<|end|>"))
    assert prompt.token_ids.count(258) == 1


def test_without_a_template_there_is_no_chat() -> None:
    with pytest.raises(TemplateFailed, match="no chat template"):
        FakeTokenizer(has_chat_template=False).render(ChatPrompt((USER,)))
