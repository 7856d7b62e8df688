"""A dialect: the wire shape that one family of clients speaks, and nothing of how it is served.

    body --decode--> BodyT --convert--> GenerationRequest, one a prompt
                                            | answering.py: start, stream or collect, cancel when the client disconnects
    bytes <--framing-- StreamItem, or answer <--+

To add a dialect, write these objects in a folder of its own and name the dialect in `app.DIALECTS`. Answering, reading
of choices, keep-alive timing, disconnects, cache headers and the status of errors exist once, in this folder.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.ports.tokenizer import Tokenizer
from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.request.request import GenerationRequest
from domain.request.stream import StreamItem
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.documented import Links
from interfaces.http.errors import Problem
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.services import Services

SERVER_SENT_EVENTS = "text/event-stream"


@dataclass(frozen=True, slots=True)
class Started:
    """The submitted generations of one request, with its context. `created_s`: Unix time; `submitted_ns`: the same
    moment by the monotonic clock.

    `requests` and `prompts` (token ids) have an entry a prompt. Each prompt has equally many choices; they are counted
    from 0, prompt by prompt. `model`: as the client named it, which may be an alias.
    """

    context: RequestContext
    requests: tuple[GenerationRequest, ...]
    prompts: tuple[IdRow, ...]
    model: ModelId
    tokenizer: Tokenizer
    created_s: int
    submitted_ns: int = 0

    @property
    def id(self) -> RequestId:
        return self.requests[0].id

    @property
    def choices_per_prompt(self) -> int:
        return self.requests[0].num_choices

    @property
    def num_choices(self) -> int:
        return len(self.prompts) * self.choices_per_prompt


class Framing(Protocol):
    """One streamed answer as bytes. Each method returns complete events, possibly none (empty bytes), and never waits.

    Order: begin, (feed | keep_alive)*, then end or fail. One framing serves one stream, so it may count its events and
    remember which block is open.
    """

    def begin(self) -> bytes:
        """Before any item. The reuse is not known yet: it is in each choice's Admitted."""
        ...

    def feed(self, index: int, item: StreamItem) -> bytes:
        """The next item of the choice `index`, in the order of `domain/stream`. Never Failed, and never Finished with
        CANCELLED: those are `fail`."""
        ...

    def keep_alive(self, progress: Progress) -> bytes:
        """An event that this dialect's clients count as a sign of life, when nothing was sent for too long."""
        ...

    def end(self) -> bytes:
        """After every choice has finished."""
        ...

    def fail(self, error: DomainError) -> bytes:
        """Instead of `end`, at any time after `begin`; the status has been sent already."""
        ...


class Body(Protocol):
    """A decoded body of any dialect."""

    @property
    def stream(self) -> bool | None: ...


BodyT = TypeVar("BodyT", bound=Body)


class Operation(Protocol[BodyT]):
    """A route on which a dialect's clients request generation. Stateless: one object serves every request.

    `body_type`, `answer_type`: types in the OpenAPI document. `decoder`: decodes bytes into a body, see `decode`.
    `stream_type`: the media type of its streams. `discriminator`: the field by which `/v1/cache/*`, which take bodies
    of any dialect, recognise a body of this operation; empty for one they do not take. `noun` names it there: "a chat".
    `links`: the operations that take something of an answer.
    """

    path: str
    operation_id: str
    body_type: type[BodyT]
    answer_type: type[Struct]
    decoder: Callable[[bytes], BodyT]
    stream_type: str = SERVER_SENT_EVENTS
    discriminator: str = ""
    noun: str = ""
    links: Links = MappingProxyType({})

    def decode(self, raw: bytes) -> BodyT:
        """Any thread. Raises InvalidRequest, also for fields that are refused by name."""
        return self.decoder(raw)

    def wire_names(self, body: BodyT) -> Mapping[str, str]:
        """The client's names for fields that the domain calls otherwise: errors name what the client sent."""
        return {}

    async def resolved(self, body: BodyT, context: RequestContext) -> BodyT:
        """The body with what it refers to, for all methods below. Raises any DomainError."""
        return body

    def convert(self, body: BodyT, context: RequestContext) -> Sequence[GenerationRequest]:
        """One request a prompt, at least one, with equal `num_choices`. Any thread: a large body is converted in a
        worker. Raises any DomainError."""
        ...

    def answer(self, body: BodyT, started: Started, choices: Sequence[Collected]) -> Struct:
        """The whole answer, by index of choice. All of them finished well."""
        ...

    def framing(self, body: BodyT, started: Started) -> Framing:
        """For a streamed answer."""
        ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """`paths` are its own, with all below them: errors raised outside any route have its shape there. `error_body`
    makes an instance of `error_type`; the status and headers are the problem's. `routes`: its routes besides its
    operations."""

    paths: Collection[str]
    operations: Sequence[Operation[Any]]
    error_type: type[Struct]
    error_body: Callable[[Problem], Struct]
    routes: Callable[[Services], Sequence[HTTPRouteHandler]] = lambda _services: ()


class Dialects:
    """All dialects of a server. The first one's error shape is for paths that none owns."""

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self._dialects = tuple(dialects)

    def __iter__(self) -> Iterator[Dialect]:
        return iter(self._dialects)

    def of(self, path: str) -> Dialect:
        """The dialect that owns this path."""
        owner = (dialect for dialect in self._dialects if any(_is_below(path, own) for own in dialect.paths))
        return next(owner, self._dialects[0])


def _is_below(path: str, own: str) -> bool:
    return path == own or path.startswith(f"{own}/")
