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

from adapters.engine_process.values import Named, PackedSubmission, SentError, encoded, from_named, named
from application.ports.cache_stats import CacheStats, Cleared
from application.ports.engine import EngineModel, EngineStatus, StepBatch
from application.ports.model_repository import ModelPreview
from domain.explanation import Explanation
from domain.ids import ModelId, RequestId
from domain.model_card import LoadOptions, ModelSource
from domain.prompt_content import EncodedPrompt
from domain.request import FinishReason


class _Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    pass


class Begin(_Message):
    """The first message. `settings`: as whoever wrote the child's entry has them encoded."""

    settings: bytes


class Submit(_Message):
    submission: PackedSubmission


class Cancel(_Message):
    """As `Engine.cancel`."""

    id: RequestId
    choice: int | None
    reason: FinishReason
    num_tokens: int | None


class Ask(_Message):
    """`what`: a name in `QUESTIONS`, and `arguments` a tuple of its types."""

    call: int
    what: str
    arguments: msgspec.Raw


class Withdraw(_Message):
    """Nobody waits for the answer any more."""

    call: int


class Stop(_Message):
    timeout_s: float


class Begun(_Message):
    """The engine is made. `status` as it begins."""

    status: EngineStatus


class Broken(_Message):
    """The engine could not be made: why. The child ends."""

    why: str


class Answer(_Message):
    """`value`: of the question's type, where there is no error."""

    call: int
    value: msgspec.Raw
    error: SentError | None = None


class Batch(_Message):
    """A StepBatch with its items and events by the names of their classes. `status`: after it; None: not much older."""

    at_ns: int
    items: tuple[tuple[RequestId, int, str, msgspec.Raw], ...]
    events: tuple[tuple[str, msgspec.Raw], ...]
    num_left_queue: int
    status: EngineStatus | None

    def opened(self) -> StepBatch:
        return StepBatch(
            self.at_ns,
            tuple((id, choice, from_named(name, raw)) for id, choice, name, raw in self.items),
            tuple(from_named(name, raw) for name, raw in self.events),
            self.num_left_queue,
        )


class Status(_Message):
    """The heartbeat of an engine that has nothing else to tell."""

    status: EngineStatus


class Stopped(_Message):
    """`in_time`: as `Engine.stop` returned."""

    in_time: bool


ToChild: TypeAlias = Begin | Submit | Cancel | Ask | Withdraw | Stop
ToParent: TypeAlias = Begun | Broken | Answer | Batch | Status | Stopped


@dataclass(frozen=True, slots=True)
class Question:
    """The types of what is asked with, and of the answer."""

    arguments: tuple[Any, ...]
    answer: Any

    @property
    def tuple_type(self) -> Any:
        return tuple[self.arguments] if self.arguments else tuple[()]


QUESTIONS: Mapping[str, Question] = {
    "load": Question((ModelSource, LoadOptions), EngineModel),
    "unload": Question((ModelId,), NoneType),
    "check": Question((ModelSource, LoadOptions), ModelPreview),
    "explain": Question((ModelId, EncodedPrompt, str), Explanation),
    "num_stored": Question((ModelId, tuple[int, ...], str), int | None),
    "settle": Question((float,), bool),
    "stats": Question((), CacheStats),
    "clear": Question((str | None, str | None), Cleared),
}


def batch_bytes(batch: StepBatch, status: EngineStatus | None) -> bytes:
    """A Batch, without a copy of what is in it."""
    items = tuple((id, choice, *named(item)) for id, choice, item in batch.items)
    events: tuple[Named, ...] = tuple(map(named, batch.events))
    whole: Any = Batch
    return encoded(whole(batch.at_ns, items, events, batch.num_left_queue, status))


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
