"""Prompts and the prefix cache: how much of a prompt would be reused, and computing one ahead of time.

An explanation can quote stored text, which another client may have sent. It does so only where a setting allows it.
Warming is an ordinary generation of one token: the cache then holds exactly what a request would have left.
"""

import asyncio
from dataclasses import dataclass, replace

from application.ports.clock import Clock
from application.ports.engine import Engine
from application.services.text_side.answers.answer import Answer, failure
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import PromptEncoder, check_fit
from application.services.text_side.models.model_pool import ModelPool
from application.use_cases.generate import Generate
from domain.errors import InvalidRequest, RequestCancelled
from domain.ids import ModelId
from domain.prefix.explanation import Explanation
from domain.request.chat import CallMode, ToolChoice
from domain.request.request import ChatPrompt, GenerationRequest, Usage
from domain.request.sampling import SamplingParams, StopRules
from domain.request.stream import Finished

SETTLE_TIMEOUT_S = 30.0
"""The time to wait until the computed state is stored."""


@dataclass(frozen=True, slots=True)
class ExplainedPrompt:
    """`model`: the id of the model that would serve the request."""

    model: ModelId
    explanation: Explanation


@dataclass(frozen=True, slots=True)
class WarmedPrompt:
    """`num_stored`: the tokens of the prompt that survive a restart; None without a store."""

    model: ModelId
    usage: Usage
    num_stored: int | None


class CachedPrompts:
    """Event loop only; encoding and decoding run in workers. Loads the model on first use. Requests are listed, and can
    be cancelled, while they are prepared."""

    def __init__(
        self,
        *,
        pool: ModelPool,
        engine: Engine,
        encoder: PromptEncoder,
        requests: OpenRequests,
        generate: Generate,
        clock: Clock,
        shows_text: bool = False,
    ) -> None:
        """`shows_text`: quote stored text at the position where a prompt differs from it."""
        self._pool = pool
        self._engine = engine
        self._encoder = encoder
        self._requests = requests
        self._generate = generate
        self._clock = clock
        self._shows_text = shows_text

    async def explain(self, request: GenerationRequest) -> ExplainedPrompt:
        """Returns what the request would reuse and why no more. Computes nothing. Raises what Generate raises for the
        same request, except for a full queue."""
        with self._requests.prepare(request, self._clock.now_ns()) as preparation:
            async with self._pool.leased(request.model) as served:
                preparation.has_model = True
                prompt = (await self._encoder.encode(request, served)).prompt
                check_fit(request, prompt, served.tokenizer, served.description)
                found = await self._engine.cache.explain(served.source.id, prompt, request.cache_salt)
                if request.num_prompt_logprobs is not None:
                    found = found.scored()
                shown = found if self._shows_text else found.without_stored()
                with_text = await asyncio.to_thread(shown.with_text, served.tokenizer.decode)
                return ExplainedPrompt(served.source.id, with_text)

    async def warm(self, request: GenerationRequest) -> WarmedPrompt:
        """Computes and stores the prompt. Raises any DomainError: InvalidRequest for a model whose state cannot be
        kept, StoreUnresponsive when the store does not answer."""
        with self._requests.prepare(request, self._clock.now_ns()):
            served = await self._pool.acquire(request.model)
        try:
            id = served.source.id
            if served.reuse_note:
                raise InvalidRequest(f"prompts of {id} cannot be kept: {served.reuse_note}", param="model")
            async with self._generate.answering([_prompt_only(request)], lease=served) as answer:
                usage = await _usage(answer)
            cache = self._engine.cache
            await cache.settle(SETTLE_TIMEOUT_S)
            num_stored = await cache.num_stored(id, answer.encoded[0], request.cache_salt)
        finally:
            self._pool.release(served)
        return WarmedPrompt(id, usage, num_stored)


def _prompt_only(request: GenerationRequest) -> GenerationRequest:
    """Returns the request reduced to its prompt and one token of output."""
    prompt = request.prompt
    if isinstance(prompt, ChatPrompt):
        prompt = replace(prompt, tool_choice=ToolChoice(CallMode.NONE))
    return replace(
        request,
        prompt=prompt,
        sampling=SamplingParams(),
        stop=StopRules(max_tokens=1),
        num_choices=1,
        grammar=None,
        num_prompt_logprobs=None,
    )


async def _usage(answer: Answer) -> Usage:
    """Returns the usage of an answer once it has finished. Raises its error."""
    async for _, item in answer:
        if (error := failure(item)) is not None:
            raise error
        if isinstance(item, Finished):
            return item.usage
    raise RequestCancelled
