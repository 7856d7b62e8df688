"""A plain answer: everything the choices of a request received, once all of them have finished, and its parts (texts,
reasoning, calls) as dialects with blocks or items show them, streamed or whole.

A part lasts as long as deltas merge with it. Deltas that show nothing yet (undecided text) belong to none: they
neither open a part nor end one, so that both ways of answering find the same parts.
"""

from dataclasses import dataclass, replace
from typing import Any

from msgspec import UNSET, Struct, UnsetType

from application.ports.clock import Clock
from application.services.text_side.answers.answer import Reading, failure
from domain.request.request import Usage
from domain.request.stream import (
    ContentDelta,
    Finished,
    PromptLogprobs,
    ReasoningDelta,
    ServerCallItem,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)


@dataclass(frozen=True, slots=True)
class Collected:
    """One choice: its deltas in order, and how it ended. `scores`: of its prompt's tokens, where they were requested
    and it is the prompt's first choice. `first_ns`: monotonic time of the first content; 0 for none. `items`: the
    deltas among the calls that the server ran; empty without such calls."""

    deltas: tuple[ContentDelta, ...]
    finished: Finished
    scores: tuple[TokenLogprob | None, ...] = ()
    first_ns: int = 0
    items: tuple[ContentDelta | ServerCallItem, ...] = ()

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(delta.text for delta in self.deltas if isinstance(delta, ReasoningDelta))

    @property
    def token_ids(self) -> list[int]:
        return [token_id for delta in self.deltas for token_id in delta.token_ids]

    def parts(self) -> list[ContentDelta]:
        """The reasoning, texts and tool calls of the choice, each whole, in their order; at a cost linear in the
        deltas."""
        runs: list[list[Any]] = []
        for delta in self.deltas:
            if runs and runs[-1][0].merges_with(delta):
                runs[-1].append(delta)
            else:
                runs.append([delta])
        return [run[0].merged(run[1:]) for run in runs]


async def collect(answer: Reading, clock: Clock) -> list[Collected]:
    """Collects the choices of an answer, in order of index. Raises the error of the first choice that failed. The
    caller closes `answer`."""
    deltas: list[list[ContentDelta]] = [[] for _ in range(answer.num_choices)]
    scores: list[list[TokenLogprob | None]] = [[] for _ in range(answer.num_choices)]
    items: list[list[ContentDelta | ServerCallItem]] = [[] for _ in range(answer.num_choices)]
    finished: dict[int, Finished] = {}
    first_ns: dict[int, int] = {}
    async for index, item in answer:
        if (error := failure(item)) is not None:
            raise error
        if isinstance(item, ContentDelta):
            first_ns.setdefault(index, clock.now_ns())
            deltas[index].append(item)
            if items[index]:
                items[index].append(item)
        elif isinstance(item, ServerCallItem):
            items[index] = items[index] or list(deltas[index])
            items[index].append(item)
        elif isinstance(item, PromptLogprobs):
            scores[index] += item.scores
        elif isinstance(item, Finished):
            finished[index] = item
    return [
        Collected(tuple(found), finished[index], tuple(scores[index]), first_ns.get(index, 0), tuple(items[index]))
        for index, found in enumerate(deltas)
    ]


def is_blank(delta: ContentDelta) -> bool:
    if isinstance(delta, ToolCallDelta):
        return not (delta.id or delta.arguments)
    return not delta.text


def visible_parts(choice: Collected) -> list[ContentDelta]:
    """Each whole, in their order."""
    return replace(choice, deltas=tuple(delta for delta in choice.deltas if not is_blank(delta))).parts()


def opening(delta: ContentDelta) -> ContentDelta:
    """The part that begins with this delta, before any of its content."""
    match delta:
        case TextDelta():
            return TextDelta("")
        case ReasoningDelta():
            return ReasoningDelta("")
        case ToolCallDelta():
            return ToolCallDelta(delta.index, delta.id, delta.name)


def num_reasoning_tokens(choice: Collected) -> int:
    return sum(len(delta.token_ids) for delta in choice.deltas if isinstance(delta, ReasoningDelta))


class PredictionTokens(Struct, kw_only=True):
    """The draft tokens of speculative decoding, by OpenAI's names: accepted ones are part of the answer, rejected ones
    were computed and dropped. OpenAI's completions have zeros where nothing was drafted; the other dialects, whose
    schemas do not have these fields, leave them out then."""

    accepted_prediction_tokens: int | UnsetType = UNSET
    rejected_prediction_tokens: int | UnsetType = UNSET


def prediction_counts(*usages: Usage, has_zeros: bool = False) -> dict[str, int]:
    """Returns the sums over all choices by field; empty if nothing was drafted, unless `has_zeros`."""
    if not has_zeros and not any(usage.proposed for usage in usages):
        return {}
    accepted = sum(usage.num_accepted for usage in usages)
    rejected = sum(usage.num_proposed for usage in usages) - accepted
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}
