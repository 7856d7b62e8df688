"""What piles up is merged at a cost that is linear in what piled up."""

from typing import Any

from application.services.text_side.unread import Unread
from domain.stream import PromptLogprobs, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta


class Counted(tuple[int, ...]):
    """Token ids that count how many of them were copied."""

    num_copied = 0

    def __add__(self, other: Any) -> "Counted":
        Counted.num_copied += len(self) + len(other)
        return Counted(tuple(self) + tuple(other))

    def __iter__(self) -> Any:
        Counted.num_copied += len(self)
        return super().__iter__()


def test_merging_what_is_not_read_costs_what_is_in_it() -> None:
    num_tokens = 20_000
    Counted.num_copied = 0
    unread = Unread()
    for at in range(num_tokens):
        unread.push(TextDelta("x", Counted((at,))))
    tokens = [token for item in unread.take() if isinstance(item, TextDelta) for token in item.token_ids]
    assert tokens == list(range(num_tokens))
    assert Counted.num_copied <= 10 * num_tokens
    assert len(unread) == 0


def test_only_what_can_be_told_together_is_merged() -> None:
    unread = Unread()
    for at in range(100):
        unread.push(TextDelta("t", (at,)))
    for delta in (ReasoningDelta("r"), ToolCallDelta(0, "call_1", "f"), ToolCallDelta(0, arguments="{}")):
        unread.push(delta)
    *_, text, reasoning, call = unread.take()
    assert isinstance(text, TextDelta)
    assert reasoning == ReasoningDelta("r")
    assert call == ToolCallDelta(0, "call_1", "f", "{}")


def test_every_kind_of_content_counts_against_the_bound() -> None:
    for delta in (TextDelta("x" * 60), ReasoningDelta("x" * 60), ToolCallDelta(0, arguments="x" * 60)):
        unread = Unread(max_held_bytes=100)
        assert unread.push(delta)
        assert not unread.push(delta)
        assert len(unread) == 1


def test_log_probabilities_of_a_prompt_are_merged_and_count_against_the_bound() -> None:
    score, unread = TokenLogprob(1, -1.0, ((1, -1.0),), 1), Unread(max_held_bytes=20_000)
    sizes = [unread.push(PromptLogprobs((None, score))) for _ in range(100)]
    assert sizes == [True] * 66 + [False] * 34
    told = unread.take()
    assert sum(len(item.scores) for item in told if isinstance(item, PromptLogprobs)) == 132
    assert len(told) == 33
