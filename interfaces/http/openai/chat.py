"""POST /v1/chat/completions."""

from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from domain.ids import ModelId
from domain.request import GenerationRequest
from interfaces.http.cache_header import cache_headers
from interfaces.http.collected import collect
from interfaces.http.disconnect import unless_client_leaves
from interfaces.http.event_stream import open_stream
from interfaces.http.fan_in import FanIn
from interfaces.http.json_body import json_body
from interfaces.http.openai.answer import AnswerContext, prompts_of
from interfaces.http.openai.chat_answer import ChatCompletion, ChatFraming, chat_completion
from interfaces.http.openai.chat_request import (
    ChatCompletionRequest,
    chat_prompt,
    max_tokens,
    num_logprobs,
    wire_names,
)
from interfaces.http.openai.documented import StreamableOperation, errors
from interfaces.http.openai.refused_fields import IN_CHAT, refuse_unsupported
from interfaces.http.openai.renamed import renamed
from interfaces.http.openai.sampling_fields import sampling_params, stop_rules
from interfaces.http.services import Services
from interfaces.http.start import start_all


def chat_route(services: Services, default_model: str, keepalive_s: float) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @post(
        "/v1/chat/completions",
        dto=json_body(ChatCompletionRequest, refuse_unsupported(IN_CHAT)),
        return_dto=None,
        status_code=200,
        operation_class=StreamableOperation,
        operation_id="createChatCompletion",
        responses=errors(400, 401, 404, 413, 415, 500, 503),
    )
    async def create_chat_completion(
        data: ChatCompletionRequest, request: Request[Any, Any, Any]
    ) -> Response[ChatCompletion]:
        with renamed(wire_names(data)):
            wanted = chat_requests(services, data, default_model)
            answer = _stream(services, data, wanted, keepalive_s) if data.stream else _answer(services, data, wanted)
            return await unless_client_leaves(request, answer)

    return create_chat_completion


async def _stream(
    services: Services, body: ChatCompletionRequest, wanted: list[GenerationRequest], keepalive_s: float
) -> Response[Any]:
    choices = await start_all(services, wanted)
    return await open_stream(choices, lambda choices: ChatFraming(_context(services, body, choices)), keepalive_s)


async def _answer(
    services: Services, body: ChatCompletionRequest, wanted: list[GenerationRequest]
) -> Response[ChatCompletion]:
    choices = await start_all(services, wanted)
    try:
        collected = await collect(choices)
        answer = chat_completion(_context(services, body, choices), collected)
        return Response(answer, headers=cache_headers(choices.explanations))
    finally:
        choices.close()


def chat_requests(services: Services, body: ChatCompletionRequest, default: str) -> list[GenerationRequest]:
    """One, for all choices. Raises InvalidRequest."""
    return [
        GenerationRequest(
            services.ids.request_id("chatcmpl"),
            ModelId(default if body.model is None else body.model),
            chat_prompt(body),
            sampling_params(body, num_logprobs(body)),
            stop_rules(body, max_tokens(body)),
            body.cache_salt or "",
            services.trace_context(),
            persist=body.store is not False,
            num_choices=body.n or 1,
        )
    ]


def _context(services: Services, body: ChatCompletionRequest, choices: FanIn) -> AnswerContext:
    first = choices.generations[0]
    return AnswerContext(
        id=first.request.id,
        model=first.model.source.id,
        created=services.clock.unix_ns() // 1_000_000_000,
        tokenizer=first.model.tokenizer,
        choices_per_prompt=choices.num_choices,
        prompts=prompts_of(choices.generations),
        has_logprobs=bool(body.logprobs),
        returns_token_ids=bool(body.return_token_ids),
        includes_usage=body.includes_usage,
    )


__all__ = ("chat_requests", "chat_route")
