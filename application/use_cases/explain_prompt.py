"""What a request would reuse and why no more, without computing it.

An explanation can quote what is stored, which is what somebody else sent. It does so only where that was allowed.
"""

from dataclasses import dataclass

from application.services.model_pool import ModelPool
from application.services.prefix.cache import PrefixCache
from application.services.prompt_encoder import PromptEncoder, check_fit
from application.services.workers import Workers
from domain.explanation import Explanation
from domain.ids import ModelId
from domain.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class ExplainedPrompt:
    """`model`: the id of the model that would serve the request."""

    model: ModelId
    explanation: Explanation


class ExplainPrompt:
    """Event loop only; encoding, lookup and decoding happen in workers."""

    def __init__(
        self,
        pool: ModelPool,
        prefix_cache: PrefixCache,
        encoder: PromptEncoder,
        store_workers: Workers,
        shows_text: bool = False,
    ) -> None:
        """`store_workers`: for calls that read the store. `shows_text`: quote what is stored where the prompt differs
        from it."""
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._encoder = encoder
        self._store_workers = store_workers
        self._shows_text = shows_text

    async def __call__(self, request: GenerationRequest) -> ExplainedPrompt:
        """Loads the model on first use. Raises what Generate raises for the same request, but for a full queue."""
        served = await self._pool.acquire(request.model)
        try:
            prompt = await self._encoder.encode(request, served.tokenizer, served.description)
            check_fit(request, prompt, served.description)
            id = served.source.id

            def explain() -> Explanation:
                found = self._prefix_cache.explain(id, prompt, request.cache_salt)
                shown = found if self._shows_text else found.without_stored()
                return shown.with_text(served.tokenizer.decode)

            return ExplainedPrompt(id, await self._store_workers.run(explain))
        finally:
            self._pool.release(served)


__all__ = ("ExplainPrompt", "ExplainedPrompt")
