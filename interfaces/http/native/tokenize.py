"""POST /tokenize, /detokenize and /apply-template: the tokens and the text of a prompt, without computing it.

They take the body of a chat, a response or a completion, and speak no vendor's dialect: the names are vLLM's, and for
the last llama.cpp's. llama.cpp's names of the others are understood too: a text in `content`, `add_special`,
`with_pieces`.
"""

from dataclasses import dataclass

import msgspec
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Link
from msgspec import Struct

from domain.errors import require
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.request.request import GenerationRequest, TokenPrompt
from interfaces.http.answering.answering import json_route
from interfaces.http.answering.documented import documented
from interfaces.http.errors import renamed
from interfaces.http.fields.prompt_body import PromptBodies, PromptBody
from interfaces.http.incoming.json_body import decode_json
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.services import Services

_FROM_TOKENS = {"detokenize": Link(operation_id="detokenize", request_body={"tokens": "$response.body#/tokens"})}


class TokenizeFields(Struct):
    """The fields of /tokenize beside those of the body. `add_special_tokens`: for a text; a chat has what its template
    writes. `content`: a text without them, unless `add_special` is true. `with_pieces`: each token has its text."""

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    content: str | None = None
    add_special: bool | None = None
    with_pieces: bool | None = None

    @property
    def has_specials(self) -> bool:
        return self.add_special_tokens is not False if self.content is None else bool(self.add_special)


class TokenPiece(Struct):
    id: int
    piece: str


class TokenizedBody(Struct):
    """The tokens of a prompt. `token_strs`: each token's text, where it was requested."""

    count: int
    max_model_len: int
    tokens: list[int | TokenPiece]
    token_strs: list[str] | None = None


class DetokenizeRequest(Struct):
    tokens: list[int]
    model: str | None = None


class PromptTextBody(Struct):
    prompt: str


class DetokenizedBody(Struct):
    """The text of tokens, by vLLM's name and by llama.cpp's."""

    prompt: str
    content: str


@dataclass(frozen=True, slots=True)
class TokenizeBody:
    """The body of a prompt in any dialect, and the fields of /tokenize in it."""

    prompt: PromptBody
    fields: TokenizeFields


_fields = msgspec.json.Decoder(TokenizeFields)


def tokenize_routes(services: Services, bodies: PromptBodies) -> list[HTTPRouteHandler]:
    def decode(raw: bytes) -> TokenizeBody:
        fields = decode_json(raw, _fields)
        if fields.content is not None or not fields.has_specials:
            body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            body.pop("add_special_tokens", None)  # a completion refuses it, because it would change the answer
            if fields.content is not None:
                require("prompt" not in body, "content", "and prompt exclude each other")
                body["prompt"] = body.pop("content")
            raw = msgspec.json.encode(body)
        return TokenizeBody(bodies.decode(raw), fields)

    @json_route("/tokenize", "tokenize", bodies.annotation, decode, document=documented(_FROM_TOKENS))
    async def tokenize(body: TokenizeBody, context: RequestContext) -> TokenizedBody:
        fields = body.fields
        with renamed(body.prompt.wire_names):
            request = await _one_request(body.prompt, context)
            require(not isinstance(request.prompt, TokenPrompt), "prompt", "cannot be token ids here")
            found = await services.tokenize.tokens(
                request,
                with_specials=fields.has_specials,
                with_texts=bool(fields.return_token_strs or fields.with_pieces),
            )
        ids, texts = list(found.token_ids), None if found.texts is None else list(found.texts)
        tokens: list[int | TokenPiece] = [*ids]
        if texts is not None and fields.with_pieces:
            tokens = [*map(TokenPiece, ids, texts)]
        return TokenizedBody(len(ids), found.context_length, tokens, texts)

    @json_route("/detokenize", "detokenize", DetokenizeRequest)
    async def detokenize(body: DetokenizeRequest, context: RequestContext) -> DetokenizedBody:
        model = ModelId(body.model or services.default_model)
        named = GenerationRequest(services.ids.request_id("text"), model, TokenPrompt(IdRow()))
        (request,) = await context.admit([named])
        text = await services.tokenize.text(request.model, body.tokens)
        return DetokenizedBody(text, text)

    @json_route("/apply-template", "applyTemplate", bodies.annotation, bodies.decode)
    async def apply_template(body: PromptBody, context: RequestContext) -> PromptTextBody:
        with renamed(body.wire_names):
            return PromptTextBody(await services.tokenize.prompt_text(await _one_request(body, context)))

    return [tokenize, detokenize, apply_template]


async def _one_request(body: PromptBody, context: RequestContext) -> GenerationRequest:
    """The request of a body with one prompt. Raises any DomainError."""
    requests = await body.requests(context)
    require(len(requests) == 1, "prompt", "cannot be several prompts here")
    return requests[0]
