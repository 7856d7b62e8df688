"""POST /tokenize, /detokenize and /apply-template: what a prompt is made of, without computing it.

They take a chat's, a response's or a completion's own body, and speak no vendor's dialect: vLLM's names, and for the
last llama.cpp's.
"""

from functools import partial
from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.spec import Link
from msgspec import Struct

from domain.id_row import IdRow
from domain.ids import ModelId
from domain.request.request import GenerationRequest, TokenPrompt
from interfaces.http.answering.answering import plain_answer
from interfaces.http.answering.dialect import Asked
from interfaces.http.answering.documented import errors, linked
from interfaces.http.errors import renamed
from interfaces.http.fields.prompt_body import PromptBodies, PromptBody
from interfaces.http.incoming.json_body import decoded_body, json_body
from interfaces.http.incoming.visit import visit_of
from interfaces.http.native.bodies import (
    DetokenizeRequest,
    PromptTextBody,
    TokenizeBody,
    TokenizedBody,
    decode_tokenize,
    one_request,
)
from interfaces.http.services import Services

_FROM_TOKENS = {"detokenize": Link(operation_id="detokenize", request_body={"tokens": "$response.body#/tokens"})}

_STATUSES = (400, 401, 404, 413, 415, 500, 503)


def native_routes(
    services: Services, default_model: str, bodies: PromptBodies, error_type: type[Struct]
) -> list[HTTPRouteHandler]:
    """The handlers, bound to what they need."""
    tokenize_dto = decoded_body(bodies.annotation, partial(decode_tokenize, bodies))

    @post(
        "/tokenize",
        dto=tokenize_dto,
        return_dto=None,
        status_code=200,
        operation_class=linked(_FROM_TOKENS),
        operation_id="tokenize",
        responses=errors(error_type, *_STATUSES),
    )
    async def tokenize(data: TokenizeBody, request: Request[Any, Any, Any]) -> TokenizedBody:
        with renamed(data.body.wire_names):
            wanted = await data.request(Asked(services, default_model, visit_of(request.scope), request.headers))
            found = await plain_answer(
                services,
                request,
                services.tokenize.tokens(
                    wanted,
                    with_specials=data.fields.add_special_tokens is not False,
                    with_texts=bool(data.fields.return_token_strs),
                ),
            )
        texts = None if found.texts is None else list(found.texts)
        return TokenizedBody(len(found.token_ids), found.context_length, list(found.token_ids), texts)

    @post(
        "/detokenize",
        dto=json_body(DetokenizeRequest),
        return_dto=None,
        status_code=200,
        operation_id="detokenize",
        responses=errors(error_type, *_STATUSES),
    )
    async def detokenize(data: DetokenizeRequest, request: Request[Any, Any, Any]) -> PromptTextBody:
        model = ModelId(default_model if data.model is None else data.model)
        named = GenerationRequest(services.ids.request_id("text"), model, TokenPrompt(IdRow()))
        (wanted,) = visit_of(request.scope).admit(await services.answering([named]), num_at_once=0)
        return PromptTextBody(await plain_answer(services, request, services.tokenize.text(wanted.model, data.tokens)))

    @post(
        "/apply-template",
        dto=bodies.dto(),
        return_dto=None,
        status_code=200,
        operation_id="applyTemplate",
        responses=errors(error_type, *_STATUSES),
    )
    async def apply_template(data: PromptBody, request: Request[Any, Any, Any]) -> PromptTextBody:
        with renamed(data.wire_names):
            asked = Asked(services, default_model, visit_of(request.scope), request.headers)
            wanted = await one_request(data, asked)
            return PromptTextBody(await plain_answer(services, request, services.tokenize.prompt_text(wanted)))

    return [tokenize, detokenize, apply_template]
