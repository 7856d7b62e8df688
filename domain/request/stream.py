"""The items that a request's stream consists of.

Each choice yields in this order: Admitted, (PromptLogprobs | PrefillProgress | Pooled)*, content*, Finished or Failed.
Content is reasoning, text and tool calls. An answer of several steps, between which the server calls tools, has
(content*, ServerCallsBegan, ServerCallEnded*) for each step but the last.

Items that wait for a slow reader may be merged: `merges_with` says whether the next item can be reported together with
this one, `merged` merges a whole run at a cost linear in it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import chain
from typing import ClassVar, Self, TypeAlias

from domain.errors import DomainError
from domain.prefix.explanation import Explanation
from domain.request.repetition import Repetition
from domain.request.request import FinishReason, Usage
from domain.request.server_calls import CallOutcome


class ProblemKind(Enum):
    """The kind of a problem. MALFORMED_ARGUMENTS: no JSON object, or one that was not ended. SCHEMA_MISMATCH: arguments
    that do not fit the tool's schema."""

    UNKNOWN_TOOL = "unknown_tool"
    MALFORMED_ARGUMENTS = "malformed_arguments"
    SCHEMA_MISMATCH = "schema_mismatch"


@dataclass(frozen=True, slots=True)
class CallProblem:
    """A problem of one tool call. `detail` is one sentence; it contains no more of the arguments than their keys."""

    call_id: str
    kind: ProblemKind
    detail: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log probability and the most likely alternatives, as (token id, log probability), likeliest first.

    `rank`: its place among all tokens, 1 for the likeliest; set for prompt tokens only.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


class _Item:
    """An item that is not content, and is never merged."""

    __slots__ = ()
    is_content: ClassVar[bool] = False

    def merges_with(self, later: object) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class Admitted(_Item):
    """The request left the queue, and the reusable part of its prompt has been restored."""

    explanation: Explanation


@dataclass(frozen=True, slots=True)
class PrefillProgress(_Item):
    """`num_done` of `num_total` prompt tokens are in the state."""

    num_done: int
    num_total: int

    def merges_with(self, later: object) -> bool:
        return isinstance(later, PrefillProgress)

    def merged(self, later: Sequence["PrefillProgress"]) -> "PrefillProgress":
        return later[-1] if later else self


@dataclass(frozen=True, slots=True)
class PromptLogprobs(_Item):
    """The log probabilities of the prompt's next tokens, a chunk of them. None for the first of the prompt, which has
    no predecessor. The first choice of a request that asks for them has them, from the first token to the last."""

    scores: tuple[TokenLogprob | None, ...]

    def merges_with(self, later: object) -> bool:
        return isinstance(later, PromptLogprobs)

    def merged(self, later: Sequence["PromptLogprobs"]) -> "PromptLogprobs":
        return PromptLogprobs(tuple(chain.from_iterable(item.scores for item in (self, *later))))


@dataclass(frozen=True, slots=True)
class Pooled(_Item):
    """The next values of a request for vectors or scores, in the order of its rows: little-endian float32 numbers; a
    score is one."""

    values: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class _WrittenDelta:
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    is_content: ClassVar[bool] = True

    def merges_with(self, later: object) -> bool:
        return type(later) is type(self)

    def merged(self, later: Sequence[Self]) -> Self:
        run = (self, *later)
        text = "".join(item.text for item in run)
        return replace(self, text=text, token_ids=_token_ids(run), logprobs=_logprobs(run))


@dataclass(frozen=True, slots=True)
class TextDelta(_WrittenDelta):
    """New text (possibly empty while a multi-byte character or a stop string is undecided) and the tokens behind it."""


@dataclass(frozen=True, slots=True)
class ReasoningDelta(_WrittenDelta):
    """New text of the model's reasoning before its answer; otherwise as TextDelta."""


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of the answer's tool call number `index`, counted from 0.

    The first piece of a call names it: `id` (unique, `call_...`) and `name`; both are empty in later ones. `arguments`:
    the next characters of the call's arguments, JSON text when joined. `is_own_id`: the server made the id, and the
    model did not write it.
    """

    is_content: ClassVar[bool] = True

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    is_own_id: bool = True

    def merges_with(self, later: object) -> bool:
        return isinstance(later, ToolCallDelta) and later.index == self.index and not later.id

    def merged(self, later: Sequence["ToolCallDelta"]) -> "ToolCallDelta":
        run = (self, *later)
        arguments = "".join(item.arguments for item in run)
        return replace(self, arguments=arguments, token_ids=_token_ids(run), logprobs=_logprobs(run))


@dataclass(frozen=True, slots=True)
class Finished(_Item):
    """The completion ended well. Nothing follows. `stop_text` is the stop string that matched, if one did.
    `call_problems`: the problems of its tool calls, in their order. `repetition`: its cause, where LENGTH is the reason
    because the answer repeated itself. `limit`: the field that bounds the calls of an answer, where LENGTH is the
    reason because of it."""

    reason: FinishReason
    usage: Usage
    stop_text: str | None = None
    call_problems: tuple[CallProblem, ...] = ()
    repetition: Repetition | None = None
    limit: str = ""


@dataclass(frozen=True, slots=True)
class Failed(_Item):
    """The completion ended in an error. Nothing follows."""

    error: DomainError
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class AnswerPrepared(_Item):
    """A part of what was made before the first step, as the interface knows it that had it made."""

    made: object


@dataclass(frozen=True, slots=True)
class ServerCallsBegan(_Item):
    """The calls of a step are whole, and the server runs its own."""


@dataclass(frozen=True, slots=True)
class ServerCallEnded(_Item):
    """The end of a call that the server ran, by the call's id."""

    call_id: str
    outcome: CallOutcome


ContentDelta: TypeAlias = ReasoningDelta | TextDelta | ToolCallDelta
ServerCallItem: TypeAlias = AnswerPrepared | ServerCallsBegan | ServerCallEnded
StreamItem: TypeAlias = (
    Admitted | PrefillProgress | PromptLogprobs | Pooled | ContentDelta | ServerCallItem | Finished | Failed
)


def _token_ids(run: Iterable[_WrittenDelta | ToolCallDelta]) -> tuple[int, ...]:
    return tuple(chain.from_iterable(item.token_ids for item in run))


def _logprobs(run: Iterable[_WrittenDelta | ToolCallDelta]) -> tuple[TokenLogprob, ...]:
    return tuple(chain.from_iterable(item.logprobs for item in run))
