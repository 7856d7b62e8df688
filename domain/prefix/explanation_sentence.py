"""An explanation as a sentence for people: what ended the reused prefix, with its numbers."""

from collections.abc import Callable, Mapping

from domain.prefix.explanation import Explanation, StopReason


def explanation_sentence(told: Explanation) -> str:
    """One sentence; never empty, never text of a prompt."""
    return _SENTENCES[told.reason](told)


def _never_seen(told: Explanation) -> str:
    if told.divergence is not None:
        return f"From token {told.divergence.position} on the prompt differs from what is stored."
    why = f": {told.note}" if told.note else ""
    if told.stopped_at == 0:
        return f"Nothing that begins like this prompt is stored{why}."
    return f"Nothing that goes on like this prompt after token {told.stopped_at} is stored{why}."


def _no_snapshot(told: Explanation) -> str:
    return (
        f"Blocks are stored up to token {told.num_known}, but the recurrent layers have no snapshot after token"
        f" {told.stopped_at} to go on from."
    )


def _partial_block(told: Explanation) -> str:
    return (
        "The prompt ends inside a stored block, and a block is reused whole or not at all; the last one before ends at"
        f" token {told.stopped_at}."
    )


def _unsupported(told: Explanation) -> str:
    return f"The model is served without reuse: {told.note or 'its cache cannot be captured'}."


_SENTENCES: Mapping[StopReason, Callable[[Explanation], str]] = {
    StopReason.LAST_TOKEN: lambda _: "Everything is reused but the last token, which is always computed.",
    StopReason.NEVER_SEEN: _never_seen,
    StopReason.EVICTED: lambda told: f"What follows token {told.num_known} was stored once and has been evicted since.",
    StopReason.NO_SNAPSHOT: _no_snapshot,
    StopReason.PARTIAL_BLOCK: _partial_block,
    StopReason.OFF_GRID: lambda told: (
        f"Exact mode resumes only at multiples of the prefill grid; the last usable one is token {told.stopped_at}."
    ),
    StopReason.OTHER_FINGERPRINT: lambda told: (
        f"The prompt is stored, but not for this model as it runs now: {told.note or 'the fingerprint differs'}."
    ),
    StopReason.SLOW_STORE: lambda told: (
        f"The store did not answer in time, so that what it may hold after token {told.stopped_at} is computed again."
    ),
    StopReason.UNREADABLE: lambda _: "What was stored could not be read or restored any more, so it is computed again.",
    StopReason.NO_ROOM: lambda _: "Memory has no room for what is stored beside a state made of it: it is computed.",
    StopReason.UNSUPPORTED_LAYOUT: _unsupported,
    StopReason.DISABLED: lambda told: f"Nothing is reused: {told.note or 'prefix reuse is off'}.",
    StopReason.SCORED: lambda _: "Nothing is reused: log probabilities of the prompt need every token computed.",
}
