"""The items that a request's stream consists of.

Each choice yields in this order: Admitted, (PromptLogprobs | PrefillProgress)*, content*, Finished or Failed. Content
is reasoning, text and tool calls.

Items that wait for a slow reader may be merged: `merges_with` says whether the next item can be reported together with
this one, `merged` merges a whole run at a cost linear in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import ClassVar, TypeAlias

from domain.errors import DomainError
from domain.prefix.explanation import Explanation
from domain.request.request import FinishReason, Usage


class ProblemKind(Enum):
    """MALFORMED_ARGUMENTS: no JSON object, or one that was not ended. SCHEMA_MISMATCH: not what the tool asks for."""

    UNKNOWN_TOOL = "unknown_tool"
    MALFORMED_ARGUMENTS = "malformed_arguments"
    SCHEMA_MISMATCH = "schema_mismatch"


@dataclass(frozen=True, slots=True)
class CallProblem:
    """`detail` is one sentence; it holds no more of the arguments than their keys."""

    call_id: str
    kind: ProblemKind
    detail: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log probability and the most likely alternatives, as (token id, log probability), likeliest first.

    `rank`: its place among all tokens, 1 for the likeliest; told of prompt tokens only.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request left the queue, and what its prompt could reuse has been restored."""

    is_content: ClassVar[bool] = False

    explanation: Explanation

    def merges_with(self, later: "StreamItem") -> bool:
        return False


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """`num_done` of `num_total` prompt tokens are in the state."""

    is_content: ClassVar[bool] = False

    num_done: int
    num_total: int

    def merges_with(self, later: "StreamItem") -> bool:
        return isinstance(later, PrefillProgress)

    def merged(self, later: Sequence["PrefillProgress"]) -> "PrefillProgress":
        return later[-1] if later else self


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """How likely the model found the prompt's next tokens, a chunk of them. None for the first of the prompt, which
    nothing foretells. Where a request asks for them its first choice has them, from the first token to the last."""

    is_content: ClassVar[bool] = False

    scores: tuple[TokenLogprob | None, ...]

    def merges_with(self, later: "StreamItem") -> bool:
        return isinstance(later, PromptLogprobs)

    def merged(self, later: Sequence["PromptLogprobs"]) -> "PromptLogprobs":
        return PromptLogprobs(tuple(chain.from_iterable(item.scores for item in (self, *later))))


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text (possibly empty while a multi-byte character or a stop string is undecided) and the tokens behind it."""

    is_content: ClassVar[bool] = True

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def merges_with(self, later: "StreamItem") -> bool:
        return isinstance(later, TextDelta)

    def merged(self, later: Sequence["TextDelta"]) -> "TextDelta":
        run = (self, *later)
        return TextDelta("".join(item.text for item in run), _token_ids(run), _logprobs(run))


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """New text that the model thinks before it answers; otherwise as TextDelta."""

    is_content: ClassVar[bool] = True

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def merges_with(self, later: "StreamItem") -> bool:
        return isinstance(later, ReasoningDelta)

    def merged(self, later: Sequence["ReasoningDelta"]) -> "ReasoningDelta":
        run = (self, *later)
        return ReasoningDelta("".join(item.text for item in run), _token_ids(run), _logprobs(run))


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the answer's tool call number `index`, counted from 0.

    The first piece of a call names it: `id` (unique, `call_...`) and `name`; both are empty in later ones. `arguments`:
    the next characters of the call's arguments, JSON text when joined.
    """

    is_content: ClassVar[bool] = True

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    def merges_with(self, later: "StreamItem") -> bool:
        return isinstance(later, ToolCallDelta) and later.index == self.index and not later.id

    def merged(self, later: Sequence["ToolCallDelta"]) -> "ToolCallDelta":
        run = (self, *later)
        return replace(
            self,
            arguments="".join(item.arguments for item in run),
            token_ids=_token_ids(run),
            logprobs=_logprobs(run),
        )


@dataclass(frozen=True, slots=True)
class Finished:
    """The completion ended well. Nothing follows. `stop_text` is the stop string that matched, if one did.
    `call_problems`: of its tool calls, in their order."""

    is_content: ClassVar[bool] = False

    reason: FinishReason
    usage: Usage
    stop_text: str | None = None
    call_problems: tuple[CallProblem, ...] = ()

    def merges_with(self, later: "StreamItem") -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Failed:
    """The completion ended in an error. Nothing follows."""

    is_content: ClassVar[bool] = False

    error: DomainError
    usage: Usage | None = None

    def merges_with(self, later: "StreamItem") -> bool:
        return False


ContentDelta: TypeAlias = ReasoningDelta | TextDelta | ToolCallDelta
StreamItem: TypeAlias = Admitted | PrefillProgress | PromptLogprobs | ContentDelta | Finished | Failed


def _token_ids(run: Iterable[ContentDelta]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(item.token_ids for item in run))


def _logprobs(run: Iterable[ContentDelta]) -> tuple[TokenLogprob, ...]:
    return tuple(chain.from_iterable(item.logprobs for item in run))
