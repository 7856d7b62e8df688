"""POST /v1/cache/explain: what a request would reuse and why no more. Takes its body, computes nothing."""

from collections.abc import Sequence
from typing import Any

from litestar import post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from msgspec import Struct

from domain.explanation import Divergence, Explanation, StopReason
from domain.explanation_sentence import explanation_sentence
from domain.fork_point import ForkKind
from domain.request import GenerationRequest
from interfaces.http.dialect import Asked
from interfaces.http.documented import errors
from interfaces.http.plain_answer import plain_answer
from interfaces.http.prompt_body import PromptBodies, PromptBody
from interfaces.http.renamed import renamed
from interfaces.http.services import Services
from interfaces.http.visit import visit_of


class DivergenceBody(Struct):
    """The first token that differs from the nearest stored prompt: its position, what stands before it in both, and
    how either goes on. `stored` is null where the server does not show stored text (`cache.show_text`)."""

    position: int
    before: str
    prompt: str
    stored: str | None


class ForkBody(Struct):
    """A position where a later request was expected to branch off."""

    position: int
    kind: ForkKind


class PromptExplanation(Struct):
    """Tokens: prompt = hot + store + computed. `stopped_at`: up to where the prompt would be reused. `known_tokens`: up
    to where its blocks are stored. `sentence` says in words what `reason` means here. `rewrites`: rules
    of `cache.rewrites` that changed the prompt."""

    prompt_tokens: int
    hot_tokens: int
    store_tokens: int
    computed_tokens: int
    stopped_at: int
    reason: StopReason
    sentence: str
    known_tokens: int
    divergence: DivergenceBody | None
    nearest_fork: ForkBody | None
    note: str
    rewrites: list[str]


class ExplanationBody(Struct, tag_field="object", tag="cairn.explanation"):
    """One entry a prompt: a chat has one, a text completion may have several."""

    model: str
    prompts: list[PromptExplanation]


def explain_route(
    services: Services, default_model: str, bodies: PromptBodies, error_type: type[Struct]
) -> HTTPRouteHandler:
    """The handler, bound to what it needs."""

    @post(
        "/v1/cache/explain",
        dto=bodies.dto(),
        return_dto=None,
        status_code=200,
        operation_id="explainCache",
        responses=errors(error_type, 400, 401, 404, 413, 415, 500, 503),
    )
    async def explain_cache(data: PromptBody, request: Request[Any, Any, Any]) -> ExplanationBody:
        asked = Asked(services, default_model, visit_of(request.scope), request.headers)
        with renamed(data.wire_names):
            requests = asked.visit.admit(await services.answering(await data.requests(asked)), num_at_once=0)
            return await plain_answer(services, request, _explained(services, requests))

    return explain_cache


async def _explained(services: Services, requests: Sequence[GenerationRequest]) -> ExplanationBody:
    explained = [await services.explain_prompt(request) for request in requests]
    return ExplanationBody(explained[0].model, [_prompt(one.explanation) for one in explained])


def _prompt(told: Explanation) -> PromptExplanation:
    fork = told.nearest_fork
    return PromptExplanation(
        prompt_tokens=told.num_prompt,
        hot_tokens=told.reused.get("hot", 0),
        store_tokens=told.reused.get("store", 0),
        computed_tokens=told.num_computed,
        stopped_at=told.stopped_at,
        reason=told.reason,
        sentence=explanation_sentence(told),
        known_tokens=told.num_known,
        divergence=_divergence(told.divergence) if told.divergence is not None else None,
        nearest_fork=ForkBody(fork.position, fork.kind) if fork is not None else None,
        note=told.note,
        rewrites=list(told.rewrites),
    )


def _divergence(found: Divergence) -> DivergenceBody:
    return DivergenceBody(found.position, found.before, found.prompt, found.stored)


__all__ = ("ExplanationBody", "explain_route")
