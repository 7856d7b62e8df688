"""How many tokens a prompt has, as the model's template renders it. Nothing is looked up or computed."""

from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.models.model_pool import ModelPool
from domain.errors import ContextOverflow
from domain.request.request import GenerationRequest


class CountTokens:
    """Event loop only; encoding happens in workers."""

    def __init__(self, pool: ModelPool, encoder: PromptEncoder) -> None:
        self._pool = pool
        self._encoder = encoder

    async def __call__(self, request: GenerationRequest) -> int:
        """Loads the model on first use. A prompt that the context cannot hold is counted too: exactly, or as far as the
        length of its text alone proves it. Raises what Generate raises for the same prompt otherwise."""
        served = await self._pool.acquire(request.model)
        try:
            return len((await self._encoder.encode(request, served.tokenizer, served.description)).token_ids)
        except ContextOverflow as error:
            return error.num_prompt
        finally:
            self._pool.release(served)
