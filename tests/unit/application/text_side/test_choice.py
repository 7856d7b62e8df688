"""A raw completion, token by token: text, stop strings over token boundaries, what is held back, the final flush."""

from collections.abc import Sequence

from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import FakeDetokenizer
from application.ports.engine import Ended, Tokens
from application.services.text_side.answers.choice import Choice, PlainParser
from domain.ids import ModelId, RequestId
from domain.request.request import FinishReason, GenerationRequest, TextPrompt, Usage
from domain.request.sampling import StopRules
from domain.request.stream import Finished, StreamItem, TextDelta, TokenLogprob


def plain(rules: StopRules) -> Choice:
    request = GenerationRequest(RequestId("r"), ModelId("m"), TextPrompt("x"), stop=rules)
    return Choice(request, 0, 1, PlainParser(FakeDetokenizer()))


def text_of(deltas: Sequence[StreamItem]) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, TextDelta))


def run(
    token_ids: bytes | list[int], rules: StopRules, max_new: int = 100, at_once: int = 1
) -> tuple[str, int, str | None]:
    """Text, counted tokens and stop string of an answer that the engine ends by EOS or at `max_new`, which tells
    `at_once` tokens at a time."""
    tokens = list(token_ids)[:max_new]
    ends = [
        at + 1
        for at, token in enumerate(tokens)
        if token == EOS_ID and not rules.ignore_eos and at + 1 >= rules.min_tokens
    ]
    tokens = tokens[: ends[0]] if ends else tokens
    choice = plain(rules)
    for start in range(0, len(tokens), at_once):
        told = tuple(tokens[start : start + at_once])
        choice.receive(Tokens(told, has_eos=bool(ends) and start + len(told) == len(tokens)))
    choice.receive(Ended(Usage(1, choice.num_tokens), FinishReason.LENGTH))
    assert isinstance(choice.outcome, Finished)
    return text_of(choice.take()), choice.outcome.usage.completion_tokens, choice.outcome.stop_text


def test_a_stop_string_over_three_tokens_ends_the_text_before_it() -> None:
    assert run(b"say STOP now", StopRules(stop=("STOP",))) == ("say ", 8, "STOP")


def test_tokens_received_together_count_up_to_the_one_that_completes_a_stop_string() -> None:
    for at_once in (2, 3, 5, 12):
        assert run(b"say STOP now", StopRules(stop=("STOP",)), at_once=at_once) == ("say ", 8, "STOP")


def test_held_back_text_is_released_at_the_length_limit() -> None:
    assert run(b"say STO", StopRules(stop=("STOP",)), max_new=7) == ("say STO", 7, None)


def test_held_back_text_is_released_at_end_of_sequence() -> None:
    assert run([*b"ST", EOS_ID], StopRules(stop=("STOP",))) == ("ST", 3, None)


def test_end_of_sequence_is_counted_but_not_shown() -> None:
    assert run([*b"hi", EOS_ID, *b"more"], StopRules()) == ("hi", 3, None)


def test_a_token_that_ends_the_answer_is_not_shown_whatever_its_text() -> None:
    choice = plain(StopRules())
    choice.receive(Tokens((ord("x"),), has_eos=True))
    assert choice.take() == [TextDelta("", (ord("x"),))]
    assert choice.num_tokens == 1


def test_ignore_eos_goes_on() -> None:
    assert run([*b"hi", EOS_ID, *b"mo"], StopRules(ignore_eos=True), max_new=5) == ("himo", 5, None)


def test_min_tokens_lets_stop_strings_and_end_of_sequence_pass() -> None:
    tokens = [*b"xSTOP", EOS_ID, *b"ySTOP"]
    assert run(tokens, StopRules(min_tokens=7, stop=("STOP",))) == ("xSTOPy", 11, "STOP")


def test_an_unfinished_character_becomes_a_replacement_only_at_the_end() -> None:
    euro = "€".encode()
    assert run([*euro, *euro[:2]], StopRules(), max_new=5) == ("€�", 5, None)


def test_a_stop_string_completed_by_the_final_flush_is_a_stop() -> None:
    assert run([*b"a", 0xE2], StopRules(stop=("�",)), max_new=2) == ("a", 2, "�")


def test_log_probabilities_stay_with_their_tokens() -> None:
    logprobs = tuple(TokenLogprob(token, -1.0) for token in b"ab")
    choice = plain(StopRules())
    choice.receive(Tokens(tuple(b"ab"), logprobs))
    assert choice.take() == [TextDelta("a", (97,), logprobs[:1]), TextDelta("b", (98,), logprobs[1:])]
