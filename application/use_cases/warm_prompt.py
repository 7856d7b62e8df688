"""The warming of a prompt: it is computed ahead of time, so that the first request with it reuses its prefix.

Warming is an ordinary generation of one token: the cache then holds exactly what a request would have left.
"""

from dataclasses import dataclass, replace

from application.ports.clock import Clock
from application.ports.engine import Engine
from application.services.text_side.answers.answer import Answer, failure
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.models.model_pool import ModelPool
from application.use_cases.generate import Generate
from domain.errors import InvalidRequest, RequestCancelled
from domain.ids import ModelId
from domain.request.chat import CallMode, ToolChoice
from domain.request.request import ChatPrompt, GenerationRequest, Usage
from domain.request.sampling import SamplingParams, StopRules
from domain.request.stream import Finished

FLUSH_TIMEOUT_S = 30.0
"""How long to wait until the computed state is stored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmedPrompt:
    """The result in tokens: prompt = computed + reused. `num_stored`: the tokens that survive a restart; None without a
    store."""

    model: ModelId
    num_prompt: int
    num_computed: int
    num_reused: int
    num_stored: int | None


class WarmPrompt:
    """Event loop only."""

    def __init__(
        self,
        pool: ModelPool,
        generate: Generate,
        engine: Engine,
        requests: OpenRequests,
        clock: Clock,
    ) -> None:
        """`requests`: lists and cancels it while it waits for its model."""
        self._pool = pool
        self._generate = generate
        self._engine = engine
        self._requests = requests
        self._clock = clock

    async def __call__(self, request: GenerationRequest) -> WarmedPrompt:
        """Raises any DomainError: InvalidRequest for a model whose state cannot be kept, StoreUnresponsive when the
        store does not answer."""
        with self._requests.prepare(request, self._clock.now_ns()):
            served = await self._pool.acquire(request.model)
        try:
            if served.reuse_note:
                raise InvalidRequest(
                    f"prompts of {served.source.id} cannot be kept: {served.reuse_note}", param="model"
                )
            answer = await self._generate.start([_prompt_only(request)], lease=served)
            try:
                usage = await _usage(answer)
            finally:
                answer.close()
            await self._engine.cache.settle(FLUSH_TIMEOUT_S)
            num_stored = await self._engine.cache.num_stored(served.source.id, answer.prompts[0], request.cache_salt)
        finally:
            self._pool.release(served)
        return WarmedPrompt(
            model=served.source.id,
            num_prompt=usage.prompt_tokens,
            num_computed=usage.computed_tokens,
            num_reused=usage.reused_tokens,
            num_stored=num_stored,
        )


def _prompt_only(request: GenerationRequest) -> GenerationRequest:
    """Returns the request reduced to its prompt and one token of output."""
    prompt, stop = request.prompt, StopRules(max_tokens=1)
    if isinstance(prompt, ChatPrompt):
        prompt = replace(prompt, tool_choice=ToolChoice(CallMode.NONE))
    return replace(
        request,
        prompt=prompt,
        sampling=SamplingParams(),
        stop=stop,
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
