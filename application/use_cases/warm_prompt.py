"""Computing a prompt ahead of time, so that the request that brings it finds it.

An ordinary generation of one token, so that what is kept is exactly what a request would have left.
"""

import asyncio
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from application.services.prefix.cache import PrefixCache
from application.services.text_side.model_pool import ModelPool
from application.use_cases.generate import Generate, Generation
from domain.errors import InvalidRequest, ServerUnavailable
from domain.ids import ModelId
from domain.request import FinishReason, GenerationRequest, Usage
from domain.sampling import SamplingParams, StopRules
from domain.stream import Failed, Finished

FLUSH_TIMEOUT_S = 30.0
"""How long to wait for the store to take what was computed."""

POLL_S = 0.02
"""How often that is looked at. No thread waits, so that any number of clients may, and a client that leaves is gone."""


class Persistence(Protocol):
    """The way to the store. Any thread."""

    def mark(self) -> int:
        """For `is_settled`: everything captured so far. Never blocks."""
        ...

    def is_settled(self, mark: int) -> bool:
        """Whether everything captured up to `mark` is stored or dropped. Never blocks."""
        ...

    async def make_durable(self) -> None:
        """Make what is stored as durable as the setting allows. Event loop only. Raises StoreUnresponsive."""
        ...


@dataclass(frozen=True, slots=True)
class WarmedPrompt:
    """In tokens: prompt = computed + reused. `num_stored`: how much a restart would leave, None without a store."""

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
        prefix_cache: PrefixCache,
        persistence: Persistence,
    ) -> None:
        self._pool = pool
        self._generate = generate
        self._prefix_cache = prefix_cache
        self._persistence = persistence

    async def __call__(self, request: GenerationRequest) -> WarmedPrompt:
        """Raises any DomainError; InvalidRequest for a model of which nothing can be kept, StoreUnresponsive when
        nobody can tell what was stored."""
        served = await self._pool.acquire(request.model)
        try:
            if note := self._prefix_cache.note(served.description):
                raise InvalidRequest(f"prompts of {served.source.id} cannot be kept: {note}", param="model")
            generation = await self._generate.start(
                replace(request, sampling=SamplingParams(), stop=StopRules(max_tokens=1)), beside=served
            )
            try:
                usage = await _usage(generation)
            finally:
                generation.close()
            if await self._settle():
                await self._persistence.make_durable()
            num_stored = await self._prefix_cache.read_store(
                partial(self._prefix_cache.num_stored, served.source.id, generation.prompt_ids, request.cache_salt)
            )
        finally:
            self._pool.release(served)
        return WarmedPrompt(
            served.source.id, usage.prompt_tokens, usage.computed_tokens, usage.reused_tokens, num_stored
        )

    async def _settle(self) -> bool:
        """Wait for what was captured so far, and not for what others add; False if FLUSH_TIMEOUT_S are not enough."""
        persistence, now_s = self._persistence, asyncio.get_running_loop().time
        mark, until_s = persistence.mark(), now_s() + FLUSH_TIMEOUT_S
        while not (is_settled := persistence.is_settled(mark)) and now_s() < until_s:  # noqa: ASYNC110 - see POLL_S
            await asyncio.sleep(POLL_S)
        return is_settled


async def _usage(generation: Generation) -> Usage:
    """Once the generation has ended well."""
    async for item in generation:
        if isinstance(item, Failed):
            raise item.error
        if isinstance(item, Finished) and item.reason is not FinishReason.CANCELLED:
            return item.usage
    raise ServerUnavailable("the request was cancelled by the server")


__all__ = ("FLUSH_TIMEOUT_S", "Persistence", "WarmPrompt", "WarmedPrompt")
