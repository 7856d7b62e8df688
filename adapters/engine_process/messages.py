"""What the two ends of an engine process say to each other. Each message is one frame.

text side                            child
Begin                         ──►
                              ◄──    Begun | Broken
Submit | Cancel               ──►
Ask | Withdraw                ──►
                              ◄──    Answer, one for each Ask that was not withdrawn
                              ◄──    Batch | Status
Stop                          ──►
                              ◄──    Stopped, the last one
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypeAlias

import msgspec

from adapters.engine_process.values import Named, SentError, encoded, from_named, named
from application.ports.cache_stats import CacheStats, Cleared
from application.ports.engine import EngineModel, EngineStatus, StepBatch, Submission
from application.ports.model_repository import ModelPreview
from domain.explanation import Explanation
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.model_card import LoadOptions, ModelSource
from domain.prompt_content import EncodedPrompt
from domain.request import FinishReason


class _Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    pass


class Begin(_Message, frozen=True):
    """The first message. `settings`: as whoever wrote the child's entry has them encoded."""

    settings: bytes


class Submit(_Message, frozen=True):
    submission: Submission


class Cancel(_Message, frozen=True):
    """As `Engine.cancel`."""

    id: RequestId
    choice: int | None
    reason: FinishReason
    num_tokens: int | None


class Ask(_Message, frozen=True):
    """`what`: a name in `QUESTIONS`, and `arguments` a tuple of its types."""

    call: int
    what: str
    arguments: msgspec.Raw


class Withdraw(_Message, frozen=True):
    """Nobody waits for the answer any more."""

    call: int


class Stop(_Message, frozen=True):
    timeout_s: float


class Begun(_Message, frozen=True):
    """The engine is made. `status` as it begins."""

    status: EngineStatus


class Broken(_Message, frozen=True):
    """The engine could not be made: why. The child ends."""

    why: str


class Answer(_Message, frozen=True):
    """`value`: of the question's type, where there is no error."""

    call: int
    value: msgspec.Raw
    error: SentError | None = None


class Batch(_Message, frozen=True):
    """A StepBatch with its items and events by the names of their classes. `status`: after it; None: not much older."""

    at_ns: int
    items: tuple[tuple[RequestId, int, str, msgspec.Raw], ...]
    events: tuple[tuple[str, msgspec.Raw], ...]
    num_left_queue: int
    computing: tuple[RequestId, ...] | None
    status: EngineStatus | None

    def opened(self) -> StepBatch:
        return StepBatch(
            self.at_ns,
            tuple((id, choice, from_named(name, raw)) for id, choice, name, raw in self.items),
            tuple(from_named(name, raw) for name, raw in self.events),
            self.num_left_queue,
            self.computing,
        )


class Status(_Message, frozen=True):
    """The heartbeat of an engine that has nothing else to tell."""

    status: EngineStatus


class Stopped(_Message, frozen=True):
    """`in_time`: as `Engine.stop` returned."""

    in_time: bool


ToChild: TypeAlias = Begin | Submit | Cancel | Ask | Withdraw | Stop
ToParent: TypeAlias = Begun | Broken | Answer | Batch | Status | Stopped


@dataclass(frozen=True, slots=True)
class Question:
    """The types of what is asked with, as a tuple, and of the answer."""

    arguments: Any
    answer: Any


QUESTIONS: Mapping[str, Question] = {
    "load": Question(tuple[ModelSource, LoadOptions], EngineModel),
    "unload": Question(tuple[ModelId], NoneType),
    "check": Question(tuple[ModelSource, LoadOptions], ModelPreview),
    "explain": Question(tuple[ModelId, EncodedPrompt, str], Explanation),
    "num_stored": Question(tuple[ModelId, IdRow, str], int | None),
    "settle": Question(tuple[float], bool),
    "stats": Question(tuple[()], CacheStats),
    "clear": Question(tuple[str | None, str | None], Cleared),
}


def batch_bytes(batch: StepBatch, status: EngineStatus | None) -> bytes:
    """A Batch, without a copy of what is in it."""
    items = tuple((id, choice, *named(item)) for id, choice, item in batch.items)
    events: tuple[Named, ...] = tuple(map(named, batch.events))
    whole: Any = Batch
    return encoded(whole(batch.at_ns, items, events, batch.num_left_queue, batch.computing, status))


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(encoded(value))


__all__ = (
    "QUESTIONS",
    "Answer",
    "Ask",
    "Batch",
    "Begin",
    "Begun",
    "Broken",
    "Cancel",
    "Status",
    "Stop",
    "Stopped",
    "Submit",
    "ToChild",
    "ToParent",
    "Withdraw",
    "batch_bytes",
    "raw",
)
