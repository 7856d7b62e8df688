"""One lookup explained, as clients and admins are told of it."""

from msgspec import Struct

from domain.prefix.explanation import Divergence, Explanation, StopReason, explanation_sentence
from domain.prefix.prompt_content import ForkKind


class DivergenceBody(Struct):
    """The first token that differs from the nearest stored prompt: its position, what stands before it in both, and
    how either goes on. `stored` is null where the server does not show stored text (`cache.show_text`)."""

    position: int
    before: str
    prompt: str
    stored: str | None


class ForkBody(Struct):
    """A position where a later request was expected to branch off."""

    position: int
    kind: ForkKind


class PromptExplanation(Struct):
    """Tokens: prompt = live + hot + store + computed. `stopped_at`: up to where the prompt would be reused.
    `known_tokens`: up to where its blocks are stored. `sentence` says in words what `reason` means here."""

    prompt_tokens: int
    hot_tokens: int
    store_tokens: int
    computed_tokens: int
    stopped_at: int
    reason: StopReason
    sentence: str
    known_tokens: int
    divergence: DivergenceBody | None
    nearest_fork: ForkBody | None
    note: str
    live_tokens: int = 0


def prompt_explanation(told: Explanation) -> PromptExplanation:
    fork = told.nearest_fork
    return PromptExplanation(
        prompt_tokens=told.num_prompt,
        hot_tokens=told.reused.get("hot", 0),
        store_tokens=told.reused.get("store", 0),
        computed_tokens=told.num_computed,
        stopped_at=told.stopped_at,
        reason=told.reason,
        sentence=explanation_sentence(told),
        known_tokens=told.num_known,
        divergence=_divergence(told.divergence) if told.divergence is not None else None,
        nearest_fork=ForkBody(fork.position, fork.kind) if fork is not None else None,
        note=told.note,
        live_tokens=told.reused.get("live", 0),
    )


def _divergence(found: Divergence) -> DivergenceBody:
    return DivergenceBody(found.position, found.before, found.prompt, found.stored)
