"""Every stop reason as a sentence with its own numbers."""

import pytest

from domain.prefix.explanation import Divergence, Explanation, StopReason, explanation_sentence

SENTENCES = {
    StopReason.LAST_TOKEN: "Everything is reused but the last token, which is always computed.",
    StopReason.NEVER_SEEN: "Nothing that goes on like this prompt after token 768 is stored: a note.",
    StopReason.EVICTED: "The block after token 1024 was stored once and has been evicted.",
    StopReason.NO_SNAPSHOT: (
        "Blocks are stored up to token 1024, but the recurrent layers have no snapshot after token 768 to go on from."
    ),
    StopReason.PARTIAL_BLOCK: (
        "The prompt ends inside a stored block, and a block is reused whole or not at all; the last one before ends at"
        " token 768."
    ),
    StopReason.OFF_GRID: "Exact mode resumes only at multiples of the prefill grid; the last usable one is token 768.",
    StopReason.OTHER_FINGERPRINT: "The prompt is stored, but not for this model as it runs now: a note.",
    StopReason.SLOW_STORE: ("The store did not answer in time, so everything after token 768 is computed again."),
    StopReason.UNREADABLE: "The stored state could not be read or restored, so it is computed again.",
    StopReason.RESTORE_FAILED: "Restoring the stored state failed this time, so it is computed; it is kept.",
    StopReason.NO_ROOM: "Memory has no room for what is stored beside a state made of it: it is computed.",
    StopReason.UNSUPPORTED_LAYOUT: "The model is served without reuse: a note.",
    StopReason.DISABLED: "Nothing is reused: a note.",
    StopReason.SCORED: "Nothing is reused: log probabilities of the prompt need every token computed.",
}


@pytest.mark.parametrize("reason", StopReason)
def test_every_reason_has_its_sentence(reason: StopReason) -> None:
    told = Explanation(2000, reason, {"hot": 512, "store": 256}, num_known=1024, note="a note")
    assert explanation_sentence(told) == SENTENCES[reason]


def test_a_fresh_prompt_and_one_that_differs_are_told_apart() -> None:
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
