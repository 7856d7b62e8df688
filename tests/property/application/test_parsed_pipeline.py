"""A chat's tokens through its pipeline: the same content for any way of telling them, and stop strings in text only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapters.fake.environment import FakeIds
from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import FakeTokenizer
from application.ports.engine import Ended, Tokens
from application.services.text_side.answers.choice import Choice
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest, Usage
from domain.request.sampling import StopRules
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta
from tests.support.http.replay.transcripts import Told, told

TOOLS = (ToolSpec("add"), ToolSpec("sub"))
PROMPT = ChatPrompt((ChatMessage(Role.USER, "hi"),), TOOLS)

PIECES = (
    *("<think>", "</think>", "<call>", "</call>", "add ", "sub ", '{"a": 1}', '{"a": "STOP"}', "STOP", "ST", "OP"),
    *("say", " ", "\n\n", "€", "<", "no {"),
)
ANSWERS = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
RULES = st.builds(StopRules, stop=st.sampled_from([(), ("STOP",), ("\n\n", "yST")]), min_tokens=st.integers(0, 9))


@dataclass(frozen=True)
class Read:
    content: Told
    token_ids: list[int]
    logprobs: list[TokenLogprob]
    finished: Finished


def read(token_ids: Sequence[int], rules: StopRules, cuts: Sequence[int] = ()) -> Read:
    """All that a client is told of an answer whose last token ends it; `cuts`: where the engine's steps end."""
    choice = choice_with(rules)
    bounds = sorted({0, len(token_ids), *(cut for cut in cuts if cut < len(token_ids))})
    for start, end in pairwise(bounds):
        ids = tuple(token_ids[start:end])
        logprobs = tuple(TokenLogprob(id, -float(start + at)) for at, id in enumerate(ids))
        choice.receive(Tokens(ids, logprobs, has_eos=end == len(token_ids)))
    choice.receive(Ended(Usage(1, choice.num_tokens), FinishReason.STOP))
    *deltas, finished = choice.take()
    assert isinstance(finished, Finished)
    content = [delta for delta in deltas if isinstance(delta, ContentDelta)]
    return Read(
        told(content),
        [id for delta in content for id in delta.token_ids],
        [logprob for delta in content for logprob in delta.logprobs],
        finished,
    )


def choice_with(rules: StopRules) -> Choice:
    request = GenerationRequest(RequestId("r"), ModelId("m"), PROMPT, stop=rules)
    return Choice(request, 0, 1, FakeTokenizer().output_parser(PROMPT, (), FakeIds().call_id))


@given(answer=ANSWERS, rules=RULES, cuts=st.lists(st.integers(1, 120), max_size=12))
def test_how_many_tokens_a_step_tells_changes_nothing(answer: str, rules: StopRules, cuts: list[int]) -> None:
    token_ids = [*answer.encode(), EOS_ID]
    one_by_one = read(token_ids, rules, range(1, len(token_ids)))
    assert read(token_ids, rules, cuts) == one_by_one
    assert one_by_one.token_ids == token_ids[: one_by_one.finished.usage.completion_tokens]
    assert [logprob.token_id for logprob in one_by_one.logprobs] == one_by_one.token_ids


@given(answer=ANSWERS)
def test_no_stop_string_is_ever_delivered_as_text(answer: str) -> None:
    assert "STOP" not in read([*answer.encode(), EOS_ID], StopRules(stop=("STOP",))).content.text


def ask(answer: str, *stop: str) -> Read:
    return read([*answer.encode(), EOS_ID], StopRules(stop=stop))


def test_reasoning_and_arguments_may_hold_a_stop_string() -> None:
    found = ask('<think>STOP</think>Well.<call>add {"a": "STOP"}</call>', "STOP")
    assert found.content == Told("STOP", "Well.", ((f"call_{1:024x}", "add", '{"a": "STOP"}'),))
    assert (found.finished.reason, found.finished.stop_text) == (FinishReason.TOOL_CALLS, None)


def test_a_stop_string_in_the_text_after_a_call_ends_the_answer_with_the_call() -> None:
    found = ask("<call>add {}</call>Then STOP it", "STOP")
    assert found.content.text == "Then "
    assert (found.finished.reason, found.finished.stop_text) == (FinishReason.TOOL_CALLS, "STOP")


def test_a_stop_string_does_not_reach_over_a_call() -> None:
    found = ask("ST<call>add {}</call>OP", "STOP")
    assert (found.content.text, found.finished.stop_text) == ("STOP", None)


def test_text_that_is_held_back_comes_before_the_call_behind_it() -> None:
    choice = choice_with(StopRules(stop=("STOP",)))
    choice.receive(Tokens(tuple(b"ST<call>add {}</call>")))
    kinds = [type(item).__name__ for item in choice.take() if not isinstance(item, TextDelta) or item.text]
    assert kinds[:2] == ["TextDelta", "ToolCallDelta"]


@pytest.mark.parametrize(
    ("answer", "kind"), [("<think>a</think>b", ReasoningDelta), ("<call>add {}</call>", ToolCallDelta)]
)
def test_tokens_that_tell_nothing_belong_to_what_is_under_way(answer: str, kind: type[ContentDelta]) -> None:
    """So that merging goes on over them, and reasoning tokens can be counted."""
    choice = choice_with(StopRules())
    close = answer.index("</")
    choice.receive(Tokens(tuple(answer.encode())))
    deltas = choice.take()
    behind = {token: delta for delta, token in zip(deltas, range(len(answer)), strict=False)}
    assert isinstance(behind[close + 1], kind)
