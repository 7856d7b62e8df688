"""The bodies of the native routes: vLLM's names, around a chat's or a completion's own body."""

from dataclasses import dataclass

import msgspec
from msgspec import Struct

from domain.errors import InvalidRequest
from domain.request.request import GenerationRequest, TokenPrompt
from interfaces.http.answering.dialect import Asked
from interfaces.http.fields.prompt_body import PromptBodies, PromptBody
from interfaces.http.incoming.json_body import decode_json


class TokenizeFields(Struct):
    """Beside those of the body itself. `add_special_tokens`: for a text; a chat has what its template writes."""

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizedBody(Struct):
    """`token_strs`: each token's text, where it was asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct):
    tokens: list[int]
    model: str | None = None


class PromptTextBody(Struct):
    prompt: str


@dataclass(frozen=True, slots=True)
class TokenizeBody:
    """A prompt's body of any dialect, and what these routes know besides."""

    body: PromptBody
    fields: TokenizeFields

    async def request(self, asked: Asked) -> GenerationRequest:
        """Raises any DomainError."""
        request = await one_request(self.body, asked)
        _refuse(isinstance(request.prompt, TokenPrompt), "prompt", "token ids here")
        return request


_fields = msgspec.json.Decoder(TokenizeFields)


async def one_request(body: PromptBody, asked: Asked) -> GenerationRequest:
    """Of a body with one prompt, for the model that answers it. Raises any DomainError."""
    requests = asked.visit.admit(await asked.services.answering(await body.requests(asked)), num_at_once=0)
    _refuse(len(requests) > 1, "prompt", "several prompts here")
    return requests[0]


def decode_tokenize(bodies: PromptBodies, raw: bytes) -> TokenizeBody:
    """Raises InvalidRequest."""
    fields = decode_json(raw, _fields)
    if fields.add_special_tokens is False:  # a completion refuses it, because it would change the answer
        body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        del body["add_special_tokens"]
        raw = msgspec.json.encode(body)
    return TokenizeBody(bodies.decode(raw), fields)


def _refuse(is_asked: bool, name: str, what: str) -> None:
    if is_asked:
        raise InvalidRequest(f"{name} cannot be {what}", param=name)
