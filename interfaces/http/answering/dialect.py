"""A dialect: the wire format of one family of clients, separate from how requests are served.

    bytes --> Body --requests--> GenerationRequest, one a prompt
                                     | answering.py: start, stream or collect, cancel when the client disconnects
    bytes <--framing-- StreamItem, or answer <--+

To add a dialect, write these objects in a folder of its own and name the dialect in `dialects.DIALECTS`. Answering,
reading of choices, keep-alive timing, disconnects, cache headers and the status of errors exist once, in this folder.
"""

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.openapi.spec import Link
from msgspec import Struct

from application.ports.tokenizer import Tokenizer
from application.services.text_side.answers.answer import Progress, Reading
from domain.errors import DomainError
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.priority import Priority
from domain.request.request import GenerationRequest
from domain.request.stream import StreamItem
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.documented import Links
from interfaces.http.errors import Problem
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.services import Services

SERVER_SENT_EVENTS = "text/event-stream"
SSE_DONE = b"data: [DONE]\n\n"


def sse_event(payload: bytes, name: str = "") -> bytes:
    """Returns one server-sent event, with a line `event: name` if its dialect uses one. `payload`: JSON on one line."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + payload + b"\n\n"


def sse_comment(text: str) -> bytes:
    """Returns a comment line, which keeps a connection alive and is ignored by every client."""
    return f": {text}\n\n".encode()


@dataclass(frozen=True, slots=True)
class Started:
    """The generations of one request, with its context. `created_s`: Unix time; `submitted_ns`: the same moment by the
    monotonic clock.

    `requests` and `prompts` (token ids) have an entry a prompt. Each prompt has equally many choices; they are counted
    from 0, prompt by prompt. `model`: as the client named it, which may be an alias; `fingerprint`: of the model as it
    runs. `prompts`, `tokenizer` and `fingerprint` are there once the first prompt was submitted.
    """

    context: RequestContext
    requests: tuple[GenerationRequest, ...]
    reading: Reading
    model: ModelId
    created_s: int
    submitted_ns: int = 0

    @property
    def prompts(self) -> Sequence[IdRow]:
        return self.reading.prompts

    @property
    def tokenizer(self) -> Tokenizer:
        return self.reading.model.tokenizer

    @property
    def fingerprint(self) -> str:
        return self.reading.model.description.system_fingerprint

    @property
    def id(self) -> RequestId:
        return self.requests[0].id

    @property
    def priority(self) -> Priority:
        """The priority that the request was given, which its key may have lowered."""
        return self.requests[0].priority

    @property
    def choices_per_prompt(self) -> int:
        return self.requests[0].num_choices

    @property
    def num_choices(self) -> int:
        return self.reading.num_choices


class Framing(Protocol):
    """One streamed answer as bytes. Each method returns complete events, possibly none (empty bytes), and never waits.

    Order: begin, (feed | keep_alive)*, then end or fail. One framing serves one stream, so it may count its events and
    remember which block is open.
    """

    def begin(self) -> bytes:
        """The bytes before any item. The reuse is not known yet: it is in each choice's Admitted."""
        ...

    def feed(self, index: int, item: StreamItem) -> bytes:
        """The next item of the choice `index`, in the order of `domain/stream`. Never Failed, and never Finished with
        CANCELLED: those are `fail`."""
        ...

    def keep_alive(self, progress: Progress) -> bytes:
        """An event that this dialect's clients count as a sign of life, when nothing was sent for too long."""
        ...

    def end(self) -> bytes:
        """The bytes after every choice has finished."""
        ...

    def fail(self, error: DomainError) -> bytes:
        """The bytes instead of `end`, at any time after `begin`; the status has been sent already."""
        ...


class Body(Protocol):
    """A decoded body of any dialect. Its methods run in any thread: for large bodies in a worker."""

    @property
    def stream(self) -> bool | None: ...

    def wire_names(self) -> Mapping[str, str]:
        """Returns the client's names for fields that the domain names otherwise: errors name what the client sent."""
        ...

    def requests(self, context: RequestContext) -> Sequence[GenerationRequest]:
        """Returns one request a prompt, at least one, with equal `num_choices`. Raises any DomainError, InvalidRequest
        for what the body asks for and is not supported."""
        ...


BodyT = TypeVar("BodyT", bound=Body)
AnsweringContext: TypeAlias = AbstractAsyncContextManager[Reading]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation(Generic[BodyT]):
    """A route on which a dialect's clients request generation.

    `instead` answers a body that asks for no generation, and returns None for any other. `resolved` returns the body
    with what it refers to, for all that follow, and `prepared` with what has to be computed before it is answered. All
    raise any DomainError. `answering` encloses the answer's stay, where `Generate.answering` does not. `answer` makes
    the whole answer of the choices by index, which have all finished well, `framing` a streamed one.

    `body_type`, `answer_type`: types in the OpenAPI document. `stream_type`: the media type of its streams.
    `discriminator`: the field by which `/v1/cache/*`, which take bodies of any dialect, recognise a body of this
    operation; empty for one they do not take. `noun` names it there: "a chat". `links`: the operations that take a part
    of an answer.
    """

    path: str
    operation_id: str
    body_type: type[BodyT]
    answer_type: type[Struct]
    answer: Callable[[BodyT, Started, Sequence[Collected]], Struct]
    framing: Callable[[BodyT, Started], Framing]
    instead: Callable[[BodyT, RequestContext], Awaitable[Struct | None]] | None = None
    resolved: Callable[[BodyT, RequestContext], Awaitable[BodyT]] | None = None
    prepared: Callable[[BodyT, RequestContext], Awaitable[BodyT]] | None = None
    answering: Callable[[BodyT, RequestContext, Sequence[GenerationRequest]], AnsweringContext] | None = None
    stream_type: str = SERVER_SENT_EVENTS
    discriminator: str = ""
    noun: str = ""
    links: Links = field(default_factory=dict[str, Link])


@dataclass(frozen=True, slots=True)
class Dialect:
    """The wire shape of one family of clients. `paths` are its own, with all below them: errors raised outside any
    route have its shape there. `error_body` makes an instance of `error_type`; the status and headers are the
    problem's. `routes`: its routes besides its operations. `takes_any_type`: its clients send JSON under any content
    type or none, which is taken from programs only. `sockets`: its WebSockets; their streams send a keep-alive after so
    many seconds."""

    paths: Collection[str]
    operations: Sequence[Operation[Any]]
    error_type: type[Struct]
    error_body: Callable[[Problem], Struct]
    routes: Callable[[Services], Sequence[HTTPRouteHandler]] = lambda _services: ()
    takes_any_type: bool = False
    sockets: Callable[[Services, float], Sequence[BaseRouteHandler]] = lambda _services, _keepalive_s: ()


class Dialects:
    """All dialects of a server. The first one's error shape is for paths that none owns."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = tuple(dialects)

    def __iter__(self) -> Iterator[Dialect]:
        return iter(self._dialects)

    def of(self, path: str) -> Dialect:
        """The dialect that owns this path."""
        owner = (dialect for dialect in self._dialects if any(is_below(path, own) for own in dialect.paths))
        return next(owner, self._dialects[0])


def is_below(path: str, own: str) -> bool:
    return path == own or path.startswith(f"{own}/")
