"""A plain answer: everything the choices of a request received, once all of them have finished."""

from collections.abc import Sequence
from dataclasses import dataclass

from domain.errors import DomainError, ServerUnavailable
from domain.request import FinishReason
from domain.stream import ContentDelta, Failed, Finished, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta
from interfaces.http.fan_in import FanIn


@dataclass(frozen=True, slots=True)
class Collected:
    """One choice. `parts`: its reasoning, texts and tool calls, each whole, in the order in which they began."""

    parts: tuple[ContentDelta, ...]
    finished: Finished

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextDelta))

    @property
    def reasoning(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, ReasoningDelta))

    @property
    def tool_calls(self) -> list[ToolCallDelta]:
        return [part for part in self.parts if isinstance(part, ToolCallDelta)]

    @property
    def token_ids(self) -> list[int]:
        return [token_id for part in self.parts for token_id in part.token_ids]

    @property
    def logprobs(self) -> list[TokenLogprob]:
        return [entry for part in self.parts for entry in part.logprobs]


async def collect(choices: FanIn) -> list[Collected]:
    """In order of index. Raises the error of the first choice that failed. The caller closes `choices`."""
    deltas: list[list[ContentDelta]] = [[] for _ in choices.explanations]
    finished: dict[int, Finished] = {}
    while choices.is_open:
        index, item = await choices.next()
        match item:
            case Finished():
                if (cut := cut_off(item)) is not None:
                    raise cut
                finished[index] = item
            case Failed(error=error):
                raise error
            case ReasoningDelta() | TextDelta() | ToolCallDelta():
                deltas[index].append(item)
            case _:
                pass
    return [Collected(whole_parts(found), finished[index]) for index, found in enumerate(deltas)]


def whole_parts(deltas: Sequence[ContentDelta]) -> tuple[ContentDelta, ...]:
    """Each run of deltas that can be told together as one, at a cost linear in them."""
    runs: list[list[ContentDelta]] = []
    for delta in deltas:
        if runs and runs[-1][0].merges_with(delta):
            runs[-1].append(delta)
        else:
            runs.append([delta])
    return tuple(run[0].merged(run[1:]) for run in runs)  # type: ignore[arg-type]


def cut_off(item: Finished) -> DomainError | None:
    """The error to report where the server cancelled the completion: an answer cut short must not look complete."""
    cancelled = item.reason is FinishReason.CANCELLED
    return ServerUnavailable("the request was cancelled by the server") if cancelled else None


__all__ = ("Collected", "collect", "cut_off", "whole_parts")
