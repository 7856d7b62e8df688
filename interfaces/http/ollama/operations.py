"""POST /api/chat and POST /api/generate."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from domain.request import GenerationRequest
from interfaces.http.collected import Collected
from interfaces.http.dialect import Asked, Framing, Operation, Started
from interfaces.http.json_body import body_decoder
from interfaces.http.ollama.answer import (
    Answer,
    ChatAnswer,
    GenerateAnswer,
    Piece,
    Teller,
    chat_answer,
    generate_answer,
)
from interfaces.http.ollama.bodies import AnswerFields, ChatRequest, GenerateRequest
from interfaces.http.ollama.framing import MEDIA_TYPE, LineFraming
from interfaces.http.ollama.options import WIRE_NAMES
from interfaces.http.ollama.prompt import chat_prompt, generate_prompt, generation_request

AnswerFieldsT = TypeVar("AnswerFieldsT", bound=AnswerFields)


class Chat(Operation[ChatRequest]):
    path = "/api/chat"
    operation_id = "ollamaChat"
    body_type = ChatRequest
    answer_type = ChatAnswer
    stream_type = MEDIA_TYPE
    _decode = staticmethod(body_decoder(ChatRequest))

    def decode(self, raw: bytes) -> ChatRequest:
        return _streaming(self._decode(raw))

    def wire_names(self, body: ChatRequest) -> Mapping[str, str]:
        return WIRE_NAMES

    async def requests(self, body: ChatRequest, asked: Asked) -> list[GenerationRequest]:
        return [generation_request(body, asked, chat_prompt(body))]

    def answer(self, body: ChatRequest, started: Started, choices: Sequence[Collected]) -> Answer:
        return whole_answer(Teller.of(started, body.model, chat_answer), choices[0])

    def framing(self, body: ChatRequest, started: Started) -> Framing:
        return LineFraming(Teller.of(started, body.model, chat_answer))


class Generate(Operation[GenerateRequest]):
    path = "/api/generate"
    operation_id = "ollamaGenerate"
    body_type = GenerateRequest
    answer_type = GenerateAnswer
    stream_type = MEDIA_TYPE
    _decode = staticmethod(body_decoder(GenerateRequest))

    def decode(self, raw: bytes) -> GenerateRequest:
        return _streaming(self._decode(raw))

    def wire_names(self, body: GenerateRequest) -> Mapping[str, str]:
        return {**WIRE_NAMES, "messages": "prompt"}

    async def requests(self, body: GenerateRequest, asked: Asked) -> list[GenerationRequest]:
        return [generation_request(body, asked, generate_prompt(body))]

    def answer(self, body: GenerateRequest, started: Started, choices: Sequence[Collected]) -> Answer:
        return whole_answer(Teller.of(started, body.model, generate_answer), choices[0])

    def framing(self, body: GenerateRequest, started: Started) -> Framing:
        return LineFraming(Teller.of(started, body.model, generate_answer))


def whole_answer(teller: Teller, choice: Collected) -> Answer:
    piece = Piece()
    for part in choice.parts():
        piece.add(part)
    return teller.last(piece, choice.finished, choice.first_ns)


def _streaming(body: AnswerFieldsT) -> AnswerFieldsT:
    """A stream unless the client says otherwise."""
    if body.stream is None:
        body.stream = True
    return body


__all__ = ("Chat", "Generate", "whole_answer")
