"""Token by token: text, stop strings over token boundaries, end-of-sequence rules, the final flush."""

from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import FakeDetokenizer
from application.services.text_side.output_pipeline import OutputPipeline
from domain.request import FinishReason
from domain.sampling import StopRules


def run(
    token_ids: bytes | list[int], rules: StopRules, max_new: int = 100
) -> tuple[str, int, FinishReason | None, str | None]:
    pipeline = OutputPipeline(FakeDetokenizer(), frozenset({EOS_ID}), rules, max_new)
    text, count = "", 0
    for token_id in token_ids:
        step = pipeline.feed(token_id)
        text, count = text + step.delta.text, count + len(step.delta.token_ids)
        if step.reason is not None:
            return text, count, step.reason, step.stop_text
    return text, count, None, None


def test_a_stop_string_over_three_tokens_ends_the_text_before_it() -> None:
    assert run(b"say STOP now", StopRules(stop=("STOP",))) == ("say ", 8, FinishReason.STOP, "STOP")


def test_held_back_text_is_released_at_the_length_limit() -> None:
    assert run(b"say STO", StopRules(stop=("STOP",)), max_new=7) == ("say STO", 7, FinishReason.LENGTH, None)


def test_held_back_text_is_released_at_end_of_sequence() -> None:
    assert run([*b"ST", EOS_ID], StopRules(stop=("STOP",))) == ("ST", 3, FinishReason.STOP, None)


def test_end_of_sequence_is_counted_but_not_shown() -> None:
    assert run([*b"hi", EOS_ID, *b"more"], StopRules()) == ("hi", 3, FinishReason.STOP, None)


def test_ignore_eos_goes_on() -> None:
    assert run([*b"hi", EOS_ID, *b"mo"], StopRules(ignore_eos=True), max_new=5) == (
        "himo",
        5,
        FinishReason.LENGTH,
        None,
    )


def test_min_tokens_lets_stop_strings_and_end_of_sequence_pass() -> None:
    tokens = [*b"xSTOP", EOS_ID, *b"ySTOP"]
    assert run(tokens, StopRules(min_tokens=7, stop=("STOP",))) == ("xSTOPy", 11, FinishReason.STOP, "STOP")


def test_an_unfinished_character_becomes_a_replacement_only_at_the_end() -> None:
    euro = "€".encode()
    assert run([*euro, *euro[:2]], StopRules(), max_new=5) == ("€�", 5, FinishReason.LENGTH, None)


def test_a_stop_string_completed_by_the_final_flush_is_a_stop() -> None:
    assert run([*b"a", 0xE2], StopRules(stop=("�",)), max_new=2) == ("a", 2, FinishReason.STOP, "�")
