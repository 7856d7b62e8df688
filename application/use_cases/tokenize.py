"""Prompts as a model's tokens, and tokens as text. Nothing is looked up or computed."""

from collections.abc import Sequence
from dataclasses import dataclass

from application.ports.tokenizer import Tokenizer
from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.models.model_pool import ModelPool
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.request.request import GenerationRequest, TextPrompt


@dataclass(frozen=True, slots=True)
class Tokenized:
    """`texts`: of each token on its own, if they were asked for. `context_length`: the most tokens that are served."""

    token_ids: IdRow
    texts: tuple[str, ...] | None
    context_length: int


class Tokenize:
    """Event loop only; encoding and decoding happen in the encoder's lanes. Loads the model on first use."""

    def __init__(self, pool: ModelPool, encoder: PromptEncoder) -> None:
        self._pool = pool
        self._encoder = encoder

    async def tokens(self, request: GenerationRequest, *, with_specials: bool, with_texts: bool) -> Tokenized:
        """`with_specials` False leaves out what the tokenizer puts around a text; a chat has only what its template
        writes. Raises what Generate raises for the same prompt, as far as encoding it tells."""
        served = await self._pool.acquire(request.model)
        try:
            tokenizer, description = served.tokenizer, served.description
            ids = (await self._encoder.encode(request, tokenizer, description)).token_ids
            if not with_specials and isinstance(request.prompt, TextPrompt):
                ids = _without_specials(ids, tokenizer)
            texts = await self._encoder.decode_each(ids, tokenizer, description) if with_texts else None
            return Tokenized(ids, texts, description.context_length)
        finally:
            self._pool.release(served)

    async def text(self, model: ModelId, token_ids: Sequence[int]) -> str:
        """Special tokens included. Raises InvalidRequest and ContextOverflow, naming `tokens`."""
        served = await self._pool.acquire(model)
        try:
            return await self._encoder.decode(token_ids, served.tokenizer, served.description)
        finally:
            self._pool.release(served)

    async def prompt_text(self, request: GenerationRequest) -> str:
        """The text of the tokens that the model would be given. Raises as `tokens` does."""
        served = await self._pool.acquire(request.model)
        try:
            ids = (await self._encoder.encode(request, served.tokenizer, served.description)).token_ids
            return await self._encoder.decode(ids, served.tokenizer, served.description)
        finally:
            self._pool.release(served)


def _without_specials(ids: IdRow, tokenizer: Tokenizer) -> IdRow:
    """What an empty text is encoded to stands around every text."""
    around = tokenizer.encode("").token_ids
    for num_before in range(len(around), -1, -1):
        before, after = around[:num_before], around[num_before:]
        rest = ids[num_before:]
        if ids[:num_before] == before and rest[len(rest) - len(after) :] == after:
            return rest[: len(rest) - len(after)]
    return ids
