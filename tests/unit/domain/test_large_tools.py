"""Tools that are many or large cost what they are long, and never the event loop."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from application.services.text_side.answers.answer_grammar import GrammarCheck, with_answer_grammar
from domain.call_grammar.tool_grammar import tool_call_grammar
from domain.errors import InvalidRequest
from domain.ids import ModelId, RequestId
from domain.models.model_card import ModelSource
from domain.output.families import FAMILIES
from domain.output.family import WrittenCalls
from domain.request.chat import CallMode, ChatMessage, Role, TextGrammar, ToolChoice, ToolSpec
from domain.request.grammar import MAX_GRAMMAR_BYTES, Grammar
from domain.request.request import ChatPrompt, GenerationRequest

WRITTEN = {family.name: family.writes[0] for family in FAMILIES}
ONE_BY_ONE = [name for name, one in WRITTEN.items() if one.parameters is not None]


def shared_definition(num_names: int) -> dict[str, Any]:
    """Parameters that all refer to one large schema."""
    inner = {f"k{index}": {"type": "integer"} for index in range(num_names)}
    return {
        "type": "object",
        "$defs": {"d": {"type": "object", "properties": inner}},
        "properties": {f"p{index}": {"$ref": "#/$defs/d"} for index in range(num_names)},
    }


@pytest.mark.parametrize("family", ONE_BY_ONE)
def test_what_parameters_share_is_not_written_without_end(family: str) -> None:
    """Where values have a form of their own, 20 KB of such a schema took two seconds, and twice as much eight."""
    schema, written = shared_definition(150), WRITTEN[family]
    grammar = tool_call_grammar(written, (ToolSpec("t", "", schema),), {}, must_call=True)
    assert len(grammar.text) < 2_000  # any arguments
    with pytest.raises(InvalidRequest, match=rf"tools\[t\] needs a grammar of more than {MAX_GRAMMAR_BYTES} bytes"):
        tool_call_grammar(written, (ToolSpec("t", "", schema, strict=True),), {}, must_call=True)


def test_a_list_of_values_is_not_searched_for_each_of_them() -> None:
    num_compared = 0

    class Compared(int):
        def __eq__(self, other: object) -> bool:
            nonlocal num_compared
            num_compared += 1
            return int(self) == other

        __hash__ = int.__hash__

    schema: Any = {"type": "object", "properties": {"p": {"enum": [Compared(one) for one in range(200)]}}}
    grammar = tool_call_grammar(WRITTEN["gemma4"], (ToolSpec("t", "", schema, strict=True),), {}, must_call=True)
    assert '"199"' in grammar.text
    assert num_compared < 2_000


@pytest.mark.parametrize("family", WRITTEN)
def test_tools_behind_what_is_too_large_are_not_looked_at(family: str) -> None:
    names: dict[str, Any] = {f"parameter_{index}": {"type": "integer"} for index in range(500)}
    large = [ToolSpec(f"t{index}", "", {"type": "object", "properties": names}, strict=True) for index in range(20)]
    wrong = ToolSpec("wrong", "", {"type": "object", "not": {}}, strict=True)
    with pytest.raises(InvalidRequest, match=f"1 to {MAX_GRAMMAR_BYTES} bytes"):
        tool_call_grammar(WRITTEN[family], (*large, wrong), {}, must_call=True)


class _WatchedTokenizer(FakeTokenizer):
    """Says on which thread a grammar of calls was written."""

    thread: int | None = None

    @property
    def written_calls(self) -> WrittenCalls:
        self.thread = threading.get_ident()
        return WRITTEN["hermes"]


class _Anything:
    def check(
        self, grammar: Grammar, vocab_size: int, special_tokens: Mapping[str, int], param: str, salt: str = ""
    ) -> None:
        """All grammars pass."""


@pytest.mark.parametrize("is_strict", [True, False])
def test_grammars_of_tools_are_written_beside_the_event_loop(is_strict: bool) -> None:
    tokenizer, checks = _WatchedTokenizer(), GrammarCheck(_Anything())
    tools = (ToolSpec("t", "", {"type": "object"}, strict=is_strict),)
    choice = ToolChoice() if is_strict else ToolChoice(CallMode.REQUIRED)
    prompt = ChatPrompt((ChatMessage(Role.USER, "?"),), tools, tool_choice=choice)
    request = GenerationRequest(RequestId("r"), ModelId("m"), prompt)
    model = FakeModel(ModelSource(ModelId("m"), ""), FakeOptions()).description
    try:
        held = asyncio.run(checks.constrain(request, tokenizer, model, (1, 2)))
    finally:
        checks.close()
    assert held.grammar is not None
    assert tokenizer.thread not in (None, threading.get_ident())


@pytest.mark.parametrize(("num_tools", "is_held"), [(2, True), (20, False)])
def test_no_more_texts_are_held_than_a_grammar_may_be_long(num_tools: int, is_held: bool) -> None:
    schema: Any = {"type": "object", "properties": {"input": {"type": "string"}}}
    told = TextGrammar("lark", f'start: "x" //{"-" * 15_000}')
    tools = tuple(ToolSpec(f"t{index}", "", schema, text_grammar=told) for index in range(num_tools))
    prompt = ChatPrompt((ChatMessage(Role.USER, "?"),), tools)
    request = GenerationRequest(RequestId("r"), ModelId("m"), prompt)
    assert (with_answer_grammar(request, FakeTokenizer(), (1, 2)).grammar is not None) == is_held


def test_a_pattern_with_an_open_bracket_is_refused_by_name() -> None:
    schema: Any = {"type": "object", "properties": {"p": {"type": "string", "pattern": "a" + "[" * 1_000}}}
    with pytest.raises(InvalidRequest, match="keyword pattern"):
        tool_call_grammar(WRITTEN["qwen_xml"], (ToolSpec("t", "", schema, strict=True),), {}, must_call=True)
