"""POST /v1/completions."""

from collections.abc import Sequence
from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.response import Response

from application.ports.tokenizer import Tokenizer
from domain.ids import ModelId
from domain.request import GenerationRequest, TextPrompt, choice_id
from interfaces.http.cache_header import cache_headers
from interfaces.http.collected import collect
from interfaces.http.disconnect import unless_client_leaves
from interfaces.http.event_stream import open_stream
from interfaces.http.fan_in import FanIn
from interfaces.http.json_body import json_body
from interfaces.http.openai.answer import AnswerContext, prompts_of
from interfaces.http.openai.completion_answer import Completion, CompletionFraming, completion
from interfaces.http.openai.completion_request import (
    DEFAULT_MAX_TOKENS,
    WIRE_NAMES,
    CompletionRequest,
    PlainPrompt,
    check_combination,
    plain_prompts,
)
from interfaces.http.openai.documented import StreamableOperation, errors
from interfaces.http.openai.refused_fields import IN_COMPLETIONS, refuse_unsupported
from interfaces.http.openai.renamed import renamed
from interfaces.http.openai.sampling_fields import sampling_params, stop_rules
from interfaces.http.services import Services
from interfaces.http.start import start_all


def completions_route(services: Services, default_model: str, keepalive_s: float) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @post(
        "/v1/completions",
        dto=json_body(CompletionRequest, refuse_unsupported(IN_COMPLETIONS)),
        return_dto=None,
        status_code=200,
        operation_class=StreamableOperation,
        operation_id="createCompletion",
        responses=errors(400, 401, 404, 413, 415, 500, 503),
    )
    async def create_completion(data: CompletionRequest, request: Request[Any, Any, Any]) -> Response[Completion]:
        with renamed(WIRE_NAMES):
            prompts = plain_prompts(data)
            wanted = completion_requests(services, data, prompts, default_model)
            if data.stream:
                answer = _stream(services, data, prompts, wanted, keepalive_s)
            else:
                answer = _answer(services, data, prompts, wanted)
            return await unless_client_leaves(request, answer)

    return create_completion


async def _stream(
    services: Services,
    body: CompletionRequest,
    prompts: list[PlainPrompt],
    wanted: list[GenerationRequest],
    keepalive_s: float,
) -> Response[Any]:
    choices = await start_all(services, wanted)
    return await open_stream(
        choices, lambda choices: CompletionFraming(_context(services, body, prompts, choices)), keepalive_s
    )


async def _answer(
    services: Services, body: CompletionRequest, prompts: list[PlainPrompt], wanted: list[GenerationRequest]
) -> Response[Completion]:
    choices = await start_all(services, wanted)
    try:
        collected = await collect(choices)
        answer = completion(_context(services, body, prompts, choices), collected)
        return Response(answer, headers=cache_headers(choices.explanations))
    finally:
        choices.close()


def completion_requests(
    services: Services, body: CompletionRequest, prompts: Sequence[PlainPrompt], default: str
) -> list[GenerationRequest]:
    """One a prompt. Raises InvalidRequest."""
    check_combination(body)
    id = services.ids.request_id("cmpl")
    stop = stop_rules(body, DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens)
    carrier = services.trace_context()
    num_choices = body.n or 1
    return [
        GenerationRequest(
            choice_id(id, number * num_choices),
            ModelId(default if body.model is None else body.model),
            prompt,
            sampling_params(body, body.logprobs),
            stop,
            body.cache_salt or "",
            carrier,
            persist=body.store is not False,
            num_choices=num_choices,
        )
        for number, prompt in enumerate(prompts)
    ]


def _context(
    services: Services, body: CompletionRequest, prompts: Sequence[PlainPrompt], choices: FanIn
) -> AnswerContext:
    first = choices.generations[0]
    tokenizer = first.model.tokenizer
    return AnswerContext(
        id=first.request.id,
        model=first.model.source.id,
        created=services.clock.unix_ns() // 1_000_000_000,
        tokenizer=tokenizer,
        choices_per_prompt=body.n or 1,
        prompts=prompts_of(choices.generations),
        has_logprobs=body.logprobs is not None,
        returns_token_ids=bool(body.return_token_ids),
        includes_usage=body.includes_usage,
        echoes=tuple(_text(prompt, tokenizer) for prompt in prompts) if body.echo else (),
    )


def _text(prompt: PlainPrompt, tokenizer: Tokenizer) -> str:
    return prompt.text if isinstance(prompt, TextPrompt) else tokenizer.decode(prompt.token_ids)


__all__ = ("completion_requests", "completions_route")
