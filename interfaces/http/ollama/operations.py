"""POST /api/chat and POST /api/generate."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

from domain.request.request import GenerationRequest, Prompt
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Framing, Operation, Started
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.answer import (
    Answer,
    ChatAnswer,
    GenerateAnswer,
    Piece,
    Shape,
    Teller,
    chat_answer,
    generate_answer,
)
from interfaces.http.ollama.bodies import AnswerFields, ChatRequest, GenerateRequest
from interfaces.http.ollama.framing import MEDIA_TYPE, LineFraming
from interfaces.http.ollama.options import WIRE_NAMES
from interfaces.http.ollama.prompt import chat_prompt, generate_prompt, generation_request

AnswerFieldsT = TypeVar("AnswerFieldsT", bound=AnswerFields)


class _OllamaOperation(Operation[AnswerFieldsT]):
    """`prompt` and `shape` are all that the two do each in its own way."""

    stream_type = MEDIA_TYPE
    names: Mapping[str, str] = WIRE_NAMES
    prompt: Callable[[AnswerFieldsT], Prompt]
    shape: Shape

    def decode(self, raw: bytes) -> AnswerFieldsT:
        """A stream unless the client says otherwise."""
        body = super().decode(raw)
        if body.stream is None:
            body.stream = True
        return body

    def wire_names(self, body: AnswerFieldsT) -> Mapping[str, str]:
        return self.names

    def convert(self, body: AnswerFieldsT, context: RequestContext) -> list[GenerationRequest]:
        return [generation_request(body, context, self.prompt(body))]

    def answer(self, body: AnswerFieldsT, started: Started, choices: Sequence[Collected]) -> Answer:
        return whole_answer(Teller.of(started, body.model, self.shape), choices[0])

    def framing(self, body: AnswerFieldsT, started: Started) -> Framing:
        return LineFraming(Teller.of(started, body.model, self.shape))


class Chat(_OllamaOperation[ChatRequest]):
    path = "/api/chat"
    operation_id = "ollamaChat"
    body_type = ChatRequest
    answer_type = ChatAnswer
    decoder = staticmethod(body_decoder(ChatRequest))
    prompt = staticmethod(chat_prompt)
    shape = staticmethod(chat_answer)


class Generate(_OllamaOperation[GenerateRequest]):
    path = "/api/generate"
    operation_id = "ollamaGenerate"
    body_type = GenerateRequest
    answer_type = GenerateAnswer
    decoder = staticmethod(body_decoder(GenerateRequest))
    names = MappingProxyType({**WIRE_NAMES, "messages": "prompt"})
    prompt = staticmethod(generate_prompt)
    shape = staticmethod(generate_answer)


def whole_answer(teller: Teller, choice: Collected) -> Answer:
    piece = Piece()
    for part in choice.parts():
        piece.add(part)
    return teller.last(piece, choice.finished, choice.first_ns)
