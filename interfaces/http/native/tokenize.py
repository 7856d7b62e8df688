"""POST /tokenize, /detokenize and /apply-template: the tokens and the text of a prompt, without computing it.

They take the body of a chat, a response or a completion, and speak no vendor's dialect: the names are vLLM's, and for
the last llama.cpp's.
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
    writes."""

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class TokenizedBody(Struct):
    """The tokens of a prompt. `token_strs`: each token's text, where it was requested."""

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
    """The body of a prompt in any dialect, and the fields of /tokenize in it."""

    prompt: PromptBody
    fields: TokenizeFields


_fields = msgspec.json.Decoder(TokenizeFields)


def tokenize_routes(services: Services, bodies: PromptBodies) -> list[HTTPRouteHandler]:
    def decode(raw: bytes) -> TokenizeBody:
        fields = decode_json(raw, _fields)
        if fields.add_special_tokens is False:  # a completion refuses it, because it would change the answer
            body = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
            del body["add_special_tokens"]
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
                with_specials=fields.add_special_tokens is not False,
                with_texts=bool(fields.return_token_strs),
            )
        texts = None if found.texts is None else list(found.texts)
        return TokenizedBody(len(found.token_ids), found.context_length, list(found.token_ids), texts)

    @json_route("/detokenize", "detokenize", DetokenizeRequest)
    async def detokenize(body: DetokenizeRequest, context: RequestContext) -> PromptTextBody:
        model = ModelId(body.model or services.default_model)
        named = GenerationRequest(services.ids.request_id("text"), model, TokenPrompt(IdRow()))
        (request,) = await context.admit([named])
        return PromptTextBody(await services.tokenize.text(request.model, body.tokens))

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
