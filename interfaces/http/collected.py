"""A plain answer: everything the choices of a request received, once all of them have finished."""

from dataclasses import dataclass
from typing import Any

from application.ports.clock import Clock
from domain.errors import DomainError, RequestCancelled
from domain.request import FinishReason
from domain.stream import (
    ContentDelta,
    Failed,
    Finished,
    PromptLogprobs,
    ReasoningDelta,
    StreamItem,
    TextDelta,
    TokenLogprob,
)
from interfaces.http.fan_in import FanIn


@dataclass(frozen=True, slots=True)
class Collected:
    """One choice: its content as it came, and how it ended. `scores`: of its prompt's tokens, where they were asked for
    and it is the prompt's first choice. `first_ns`: when the first content came; 0 for none."""

    deltas: tuple[ContentDelta, ...]
    finished: Finished
    scores: tuple[TokenLogprob | None, ...] = ()
    first_ns: int = 0

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
        """Its reasoning, texts and tool calls, each whole, in their order; at a cost linear in the deltas."""
        runs: list[list[Any]] = []
        for delta in self.deltas:
            if runs and runs[-1][0].merges_with(delta):
                runs[-1].append(delta)
            else:
                runs.append([delta])
        return [run[0].merged(run[1:]) for run in runs]


async def collect(choices: FanIn, clock: Clock) -> list[Collected]:
    """In order of index. Raises the error of the first choice that failed. The caller closes `choices`."""
    deltas: list[list[ContentDelta]] = [[] for _ in range(choices.num_choices)]
    scores: list[list[TokenLogprob | None]] = [[] for _ in range(choices.num_choices)]
    finished: dict[int, Finished] = {}
    first_ns: dict[int, int] = {}
    while choices.is_open:
        index, item = await choices.next()
        if (error := failure(item)) is not None:
            raise error
        if isinstance(item, ContentDelta):
            first_ns.setdefault(index, clock.now_ns())
            deltas[index].append(item)
        elif isinstance(item, PromptLogprobs):
            scores[index] += item.scores
        elif isinstance(item, Finished):
            finished[index] = item
    return [
        Collected(tuple(found), finished[index], tuple(scores[index]), first_ns.get(index, 0))
        for index, found in enumerate(deltas)
    ]


def failure(item: StreamItem) -> DomainError | None:
    """The error to report for a choice that ends with this item, if it ends badly. One that the server cancelled does:
    an answer cut short must not look complete."""
    if isinstance(item, Failed):
        return item.error
    if isinstance(item, Finished) and item.reason is FinishReason.CANCELLED:
        return RequestCancelled()
    return None


__all__ = ("Collected", "collect", "failure")
