"""A second dialect, as small as one can be: what a server speaks besides OpenAI's, in one file."""

from collections.abc import Sequence
from typing import Annotated

import msgspec
from litestar import get
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.request.request import GenerationRequest, TextPrompt
from domain.request.stream import Admitted, ContentDelta, Finished, StreamItem, TextDelta
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Dialect, Framing, Operation, Started, sse_event
from interfaces.http.errors import Problem, problem_of
from interfaces.http.fields.parameters import refuse_unsupported, refused, supported
from interfaces.http.fields.sampling_fields import SamplingFields, new_request
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.services import Services

PATH = "/telegraph/send"


class Telegram(SamplingFields, kw_only=True):
    telegram: Annotated[str, supported("its text")]
    words: Annotated[int, supported("at most")] = 20
    copies: Annotated[int, supported("so many")] = 1
    urgent: Annotated[bool | None, refused("none is", False)] = None


class Reply(Struct):
    operator: str
    texts: list[str]


class Wrong(Struct):
    wrong: str
    why: str


class Ticks(Framing):
    """Numbered events, one kind of each call."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._num_events = 0

    def begin(self) -> bytes:
        return self._event("begin", self._started.id)

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case Admitted(explanation=explanation):
                return self._event("admitted", f"{index}:{explanation.num_prompt}")
            case TextDelta(text=text):
                return self._event("text", f"{index}:{text}")
            case Finished(reason=reason):
                return self._event("finished", f"{index}:{reason.value}")
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        return self._event("alive", progress.text)

    def end(self) -> bytes:
        return self._event("end", "")

    def fail(self, error: DomainError) -> bytes:
        return self._event("wrong", problem_of(error).code)

    def _event(self, name: str, text: str) -> bytes:
        self._num_events += 1
        return sse_event(msgspec.json.encode([self._num_events, text]), name)


def convert(body: Telegram, context: RequestContext) -> list[GenerationRequest]:
    refuse_unsupported(body)
    prompt = TextPrompt(context.headers.get("x-station", "") + body.telegram)
    stop = body.stop_rules(body.words)
    return [new_request(body, context, "tg", prompt, sampling=body.sampling(), stop=stop, num_choices=body.copies)]


def answer(body: Telegram, started: Started, choices: Sequence[Collected]) -> Reply:
    return Reply(started.model, [_text(choice.parts()) for choice in choices])


def framing(body: Telegram, started: Started) -> Framing:
    return Ticks(started)


SEND = Operation(
    path=PATH,
    operation_id="sendTelegram",
    body_type=Telegram,
    answer_type=Reply,
    decode=body_decoder(Telegram),
    convert=convert,
    answer=answer,
    framing=framing,
    wire_names=lambda _body: {"max_tokens": "words"},
    discriminator="telegram",
    noun="a telegram",
)


def telegraph_routes(services: Services) -> Sequence[HTTPRouteHandler]:
    @get("/telegraph/operator", sync_to_thread=False)
    def operator() -> str:
        return services.default_model

    return [operator]


def wrong(problem: Problem) -> Wrong:
    return Wrong(problem.code, problem.message)


TELEGRAPH = Dialect(("/telegraph",), (SEND,), Wrong, wrong, telegraph_routes)


def _text(parts: Sequence[ContentDelta]) -> str:
    return "+".join(part.text for part in parts if isinstance(part, TextDelta))
