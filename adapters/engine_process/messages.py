"""The messages between the two ends of an engine process, and their encoding. Each message is one frame.

text side                            child
                              ◄──    greeting, the digest of all message types
Begin                         ──►
                              ◄──    Begun | Broken
Submit | Cancel | Provide     ──►
Adjust                        ──►
Ask | Withdraw                ──►
                              ◄──    EngineReply, one for each Ask that was not withdrawn
                              ◄──    Batch | Status
Stop                          ──►
                              ◄──    Stopped, the last one

Values of the engine port are encoded as MessagePack by msgspec, which checks every type. A value of one of several
types, such as an item of a batch or a telemetry event, is preceded by the name of its class. A row of ids is encoded as
its bytes.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import NoneType
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import msgspec

from application.events import Event
from application.ports.cache_stats import CacheStats, Cleared
from application.ports.engine import Engine, EngineError, EngineItem, EngineModel, EngineStatus, StepBatch, Submission
from application.ports.model_repository import ModelPreview
from application.ports.vision import PreparedImage
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.explanation import Explanation
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.request import FinishReason

T = TypeVar("T")


def _plain(value: object) -> bytes:
    if isinstance(value, IdRow):
        return value.to_bytes()
    raise NotImplementedError(f"the engine port has no type {type(value).__name__}")


def _read(kind: type, plain: object) -> IdRow:
    if kind is IdRow and isinstance(plain, bytes):
        return IdRow.of_bytes(plain)
    raise TypeError(f"a {type(plain).__name__} cannot be decoded as {kind.__name__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
_decoders: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_CLASSES: dict[str, type] = {kind.__name__: kind for kind in (*get_args(EngineItem), *get_args(Event))}


def encoded(value: object) -> bytes:
    return _encoder.encode(value)


def decoded(data: "bytes | msgspec.Raw", kind: Any) -> Any:
    """Returns the value. Raises msgspec.MsgspecError for any data that is not of this type."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind, dec_hook=_read)
    return decoder.decode(data)


def from_named(name: str, raw: msgspec.Raw) -> Any:
    """Returns a value by the name of its class. Raises KeyError for an unknown class, and as `decoded`."""
    return decoded(raw, _CLASSES[name])


class _Message(msgspec.Struct, tag=True, array_like=True, frozen=True):
    pass


class Begin(_Message, frozen=True):
    """The first message to the child. `settings`: encoded by the entry of the child, which decodes them."""

    settings: bytes


class Adjust(_Message, frozen=True):
    """The settings have changed. `settings`: all of them, as in Begin; the child takes those that it can."""

    settings: bytes


class Submit(_Message, frozen=True):
    submission: Submission


class Cancel(_Message, frozen=True):
    """A call of `Engine.cancel`."""

    id: RequestId
    choice: int | None
    reason: FinishReason
    num_tokens: int | None

    def pass_to(self, engine: Engine) -> None:
        engine.cancel(self.id, self.choice, reason=self.reason, num_tokens=self.num_tokens)


class Provide(_Message, frozen=True):
    """A call of `Engine.provide_image`. One of `image` and `error` is None."""

    model: ModelId
    salt: str
    digest: bytes
    image: PreparedImage | None
    error: EngineError | None

    def pass_to(self, engine: Engine) -> None:
        if (found := self.image or self.error) is not None:
            engine.provide_image(self.model, self.salt, self.digest, found)


class Ask(_Message, frozen=True):
    """A question. `what`: a name in `QUESTIONS`. `arguments`: a tuple of its types."""

    call: int
    what: str
    arguments: msgspec.Raw


class Withdraw(_Message, frozen=True):
    """The withdrawal of a question: its answer is no longer needed."""

    call: int


class Stop(_Message, frozen=True):
    timeout_s: float


class Begun(_Message, frozen=True):
    """The report that the engine was made. `status`: its first status."""

    status: EngineStatus


class Broken(_Message, frozen=True):
    """The engine could not be made or cannot continue, with the reason. The child ends."""

    why: str


class EngineReply(_Message, frozen=True):
    """The answer to a question. `value`: of the question's answer type, unless there is an error."""

    call: int
    value: msgspec.Raw
    error: EngineError | None = None


class Batch(_Message, frozen=True):
    """A StepBatch with its items and events by the names of their classes. `status`: after it; None if it is recent."""

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
    """The heartbeat of an engine that has nothing else to report."""

    status: EngineStatus


class Stopped(_Message, frozen=True):
    """The last message. `in_time`: the result of `Engine.stop`."""

    in_time: bool


ToChild: TypeAlias = Begin | Adjust | Submit | Cancel | Provide | Ask | Withdraw | Stop
ToParent: TypeAlias = Begun | Broken | EngineReply | Batch | Status | Stopped


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """A call of the engine or its cache that is answered with a T. `arguments`, `answer`: their types, as decoded."""

    name: str
    arguments: Any
    answer: Any


LOAD: Question[EngineModel] = Question("load", tuple[ModelSource, LoadOptions], EngineModel)
UNLOAD: Question[None] = Question("unload", tuple[ModelId], NoneType)
CHECK: Question[ModelPreview] = Question("check", tuple[ModelSource, LoadOptions], ModelPreview)
EXPLAIN: Question[Explanation] = Question("explain", tuple[ModelId, EncodedPrompt, str], Explanation)
NUM_STORED: Question[int | None] = Question("num_stored", tuple[ModelId, EncodedPrompt, str], int | None)
SETTLE: Question[bool] = Question("settle", tuple[float], bool)
STATS: Question[CacheStats] = Question("stats", tuple[()], CacheStats)
CLEAR: Question[Cleared] = Question("clear", tuple[str | None, str | None], Cleared)
CLEAR_HOT: Question[Cleared] = Question("clear_hot", tuple[()], Cleared)

QUESTIONS: Mapping[str, Question[Any]] = {
    question.name: question for question in (LOAD, UNLOAD, CHECK, EXPLAIN, NUM_STORED, SETTLE, STATS, CLEAR, CLEAR_HOT)
}


@cache
def greeting() -> bytes:
    """Returns the first message of a child: a digest of the types of all messages, as this process has imported them.
    It differs from the parent's after an upgrade of the package under a running server."""
    questions = [kind for question in QUESTIONS.values() for kind in (question.arguments, question.answer)]
    kinds = (*get_args(ToChild), *get_args(ToParent), *_CLASSES.values(), *questions)
    types = repr(msgspec.inspect.multi_type_info(kinds))
    return b"cairn-engine " + hashlib.sha256(types.encode()).hexdigest().encode()


def batch_bytes(batch: StepBatch, status: EngineStatus | None) -> bytes:
    """Returns an encoded Batch, without copying its items."""
    items = tuple((id, choice, type(item).__name__, item) for id, choice, item in batch.items)
    events = tuple((type(event).__name__, event) for event in batch.events)
    whole: Any = Batch
    return encoded(whole(batch.at_ns, items, events, batch.num_left_queue, batch.computing, status))


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(encoded(value))


NO_VALUE = msgspec.Raw(b"\xc0")
"""The encoded `value` of an answer that carries an error."""
