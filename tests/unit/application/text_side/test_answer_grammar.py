"""Whether reasoning may stand before an answer that is held to a form: not where the client asked for none."""

from collections.abc import Sequence

import pytest

from adapters.fake.tokenizer import FakeTokenizer
from application.services.text_side.answers.answer_grammar import with_answer_grammar
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, Role
from domain.request.grammar import Marker, Reasoning, choice_grammar
from domain.request.reasoning_budget import NO_REASONING, ReasoningLimit
from domain.request.request import ChatPrompt, GenerationRequest

CLOSE = (Marker("</think>"),)
FREE = Reasoning(CLOSE, (Marker("<think>"),))
OPENED = Reasoning(CLOSE)
CHANNELLED = Reasoning(CLOSE, (Marker("<think>"),), (Marker("<final>"),))
OFF = {"enable_thinking": False}


class Reasoner(FakeTokenizer):
    """Of a family that reasons before it answers."""

    def __init__(self, reasoning: Reasoning) -> None:
        super().__init__()
        self._reasoning = reasoning

    def reasoning_before(self, prompt_ids: Sequence[int]) -> Reasoning | None:
        return self._reasoning


@pytest.mark.parametrize(
    ("reasoning", "kwargs", "limit", "stands"),
    [
        (FREE, {}, None, True),
        (FREE, {}, ReasoningLimit(1), True),
        (FREE, {}, NO_REASONING, False),
        (FREE, OFF, None, False),
        (OPENED, OFF, NO_REASONING, True),
        (CHANNELLED, OFF, NO_REASONING, True),
    ],
)
def test_none_stands_before_the_form_where_none_was_asked_for_and_none_is_needed(
    reasoning: Reasoning, kwargs: dict[str, bool], limit: ReasoningLimit | None, stands: bool
) -> None:
    prompt = ChatPrompt((ChatMessage(Role.USER, "hi"),), template_kwargs=kwargs)
    form = choice_grammar(["yes", "no"], "x")
    asked = GenerationRequest(RequestId("r"), ModelId("m"), prompt, grammar=form, reasoning=limit)
    grammar = with_answer_grammar(asked, Reasoner(reasoning), (1,)).grammar
    assert grammar is not None
    assert grammar.reasoning == (reasoning if stands else None)
