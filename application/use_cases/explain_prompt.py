"""The explanation of a prompt: how much of it would be reused and why no more, without computing it.

An explanation can quote stored text, which another client may have sent. It does so only where a setting allows it.
"""

import asyncio
from dataclasses import dataclass

from application.ports.clock import Clock
from application.ports.engine import Engine
from application.services.text_side.answers.open_requests import OpenRequests, Preparation
from application.services.text_side.answers.prompt_encoder import PromptEncoder, check_fit
from application.services.text_side.models.model_pool import ModelPool
from domain.ids import ModelId
from domain.prefix.explanation import Explanation
from domain.request.request import GenerationRequest


@dataclass(frozen=True, slots=True)
class ExplainedPrompt:
    """`model`: the id of the model that would serve the request."""

    model: ModelId
    explanation: Explanation


class ExplainPrompt:
    """Event loop only; encoding and decoding happen in workers."""

    def __init__(
        self,
        pool: ModelPool,
        engine: Engine,
        encoder: PromptEncoder,
        requests: OpenRequests,
        clock: Clock,
        *,
        shows_text: bool = False,
    ) -> None:
        """`requests`: lists and cancels it while it is prepared. `shows_text`: quote stored text at the position where
        the prompt differs from it."""
        self._pool = pool
        self._engine = engine
        self._encoder = encoder
        self._requests = requests
        self._clock = clock
        self._shows_text = shows_text

    async def __call__(self, request: GenerationRequest) -> ExplainedPrompt:
        """Loads the model on first use. Raises what Generate raises for the same request, but for a full queue."""
        with self._requests.prepare(request, self._clock.now_ns()) as preparation:
            return await self._explained(request, preparation)

    async def _explained(self, request: GenerationRequest, preparation: Preparation) -> ExplainedPrompt:
        async with self._pool.leased(request.model) as served:
            preparation.has_model = True
            prompt = await self._encoder.encode(request, served.tokenizer, served.description)
            check_fit(request, prompt, served.tokenizer, served.description)
            found = await self._engine.cache.explain(served.source.id, prompt, request.cache_salt)
            if request.num_prompt_logprobs is not None:
                found = found.scored()
            shown = found if self._shows_text else found.without_stored()
            told = await asyncio.to_thread(shown.with_text, served.tokenizer.decode)
            return ExplainedPrompt(served.source.id, told)
