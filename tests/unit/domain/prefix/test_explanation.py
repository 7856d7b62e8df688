"""The explanation of a lookup: where a prompt diverges, and every stop reason as a sentence with its own numbers."""

from dataclasses import replace

import pytest

from domain.prefix.explanation import (
    CONTEXT_TOKENS,
    Divergence,
    Explanation,
    StopReason,
    common_length,
    compared_with_stored,
    explanation_sentence,
    find_divergence,
    nearest_fork,
)
from domain.prefix.prompt_content import ForkKind, ForkPoint


def text(token_ids: tuple[int, ...]) -> str:
    return bytes(token_ids).decode()


def test_the_divergence_is_the_first_differing_token_of_the_nearest_run() -> None:
    prompt = tuple(b"You are a helpful bot. Today is Monday. What now?")
    stored = [tuple(b"Today is Sunday. Wh"), tuple(b"Today was"), tuple(b"Xoday is Monday")]
    found = find_divergence(prompt, 23, stored)
    assert found is not None
    assert found.position == prompt.index(ord("M"))
    explained = Explanation(len(prompt), StopReason.NEVER_SEEN, {"hot": 23}, divergence=found).with_text(text)
    assert explained.divergence is not None
    assert explained.divergence.before == "t. Today is "
    assert explained.divergence.prompt == "Monday. What"
    assert explained.divergence.stored == "Sunday. Wh"
    assert len(found.before_ids) == len(found.prompt_ids) == CONTEXT_TOKENS


def test_runs_that_only_differ_in_length_do_not_diverge() -> None:
    assert find_divergence((1, 2, 3, 4), 2, [(3, 4, 5)]) is None
    assert find_divergence((1, 2, 3, 4), 2, [(3,)]) is None
    assert find_divergence((1, 2, 3, 4), 2, []) is None
    assert find_divergence((1, 2, 3, 4), 4, [(9,)]) is None


def test_prompts_without_a_common_beginning_do_not_diverge() -> None:
    assert find_divergence((1, 2, 3), 0, [(9, 2, 3)]) is None
    found = find_divergence((1, 2, 3), 1, [(9, 3)])
    assert found is not None
    assert (found.position, found.before_ids) == (1, (1,))


def test_a_prompt_that_ends_before_the_stored_run_does_is_not_unseen() -> None:
    told = Explanation(4, StopReason.NEVER_SEEN, {"hot": 2}, num_known=2)
    prompt = (1, 2, 3, 4)
    assert compared_with_stored(told, prompt, [(9,), (3, 4, 5)]).reason is StopReason.PARTIAL_BLOCK
    assert compared_with_stored(told, prompt, [(3, 4)]) == told
    assert compared_with_stored(told, prompt, [(3,)]) == told
    assert compared_with_stored(told, prompt, []) == told
    other = compared_with_stored(told, prompt, [(3, 5, 5)])
    assert other.reason is StopReason.NEVER_SEEN
    assert other.divergence is not None
    assert other.divergence.position == 3


def test_common_length_agrees_with_counting() -> None:
    for length in range(9):
        left, right = [1] * 8, [1] * 8
        if length < 8:
            right[length] = 2
        assert common_length(left, right) == length


def test_the_header_is_one_line_and_adds_up() -> None:
    explained = Explanation(1036, StopReason.LAST_TOKEN, {"hot": 512, "store": 256})
    assert explained.header() == "reused=768; live=0; hot=512; store=256; computed=268; reason=last-token"
    assert explained.num_computed + explained.stopped_at == explained.num_prompt


def test_the_nearest_fork_is_the_last_one_not_beyond_the_stop() -> None:
    forks = [ForkPoint(10, ForkKind.SYSTEM_END), ForkPoint(30, ForkKind.TURN), ForkPoint(50, ForkKind.NEXT_TURN)]
    assert nearest_fork(forks, 49) == forks[1]
    assert nearest_fork(forks, 50) == forks[2]
    assert nearest_fork(forks, 9) is None


NAMED = {
    StopReason.NEVER_SEEN: ("768", "a note"),
    StopReason.EVICTED: ("1024",),
    StopReason.NO_SNAPSHOT: ("1024", "768"),
    StopReason.PARTIAL_BLOCK: ("768",),
    StopReason.OFF_GRID: ("768",),
    StopReason.OTHER_FINGERPRINT: ("a note",),
    StopReason.SLOW_STORE: ("768",),
    StopReason.SLOW_SHARED: ("768",),
    StopReason.UNSUPPORTED_LAYOUT: ("a note",),
    StopReason.DISABLED: ("a note",),
}
"""The numbers and the note that a sentence has."""


@pytest.mark.parametrize("reason", StopReason)
def test_every_reason_has_a_sentence_of_its_own(reason: StopReason) -> None:
    told = Explanation(2000, reason, {"hot": 512, "store": 256}, num_known=1024, note="a note")
    sentences = {other: explanation_sentence(replace(told, reason=other)) for other in StopReason}
    assert list(sentences.values()).count(sentences[reason]) == 1
    assert all(part in sentences[reason] for part in (*NAMED.get(reason, ()), "."))


def test_a_fresh_prompt_and_one_that_differs_are_distinguished() -> None:
    assert explanation_sentence(Explanation(9, StopReason.NEVER_SEEN)) == (
        "Nothing that begins like this prompt is stored."
    )
    found = Divergence(790, (1,), (2,), (3,))
    assert explanation_sentence(Explanation(2000, StopReason.NEVER_SEEN, {"hot": 768}, divergence=found)) == (
        "From token 790 on the prompt differs from what is stored."
    )


@pytest.mark.parametrize("reason", [StopReason.OTHER_FINGERPRINT, StopReason.UNSUPPORTED_LAYOUT, StopReason.DISABLED])
def test_without_a_note_it_still_says_something(reason: StopReason) -> None:
    assert not explanation_sentence(Explanation(9, reason)).endswith(": .")
