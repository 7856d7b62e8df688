"""Prompts as a model's tokens, tokens as text, and counts. Nothing is looked up or computed."""

from collections.abc import Sequence
from dataclasses import dataclass

from application.ports.tokenizer import Tokenizer
from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.models.model_finder import ServedModel
from application.services.text_side.models.model_pool import ModelPool
from domain.errors import ContextOverflow, InvalidRequest
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.request.request import ChatPrompt, GenerationRequest, TextPrompt


@dataclass(frozen=True, slots=True)
class Tokenized:
    """`texts`: of each token on its own, if they were asked for. `context_length`: the most tokens that are served."""

    token_ids: IdRow
    texts: tuple[str, ...] | None
    context_length: int


class Tokenize:
    """Event loop only; encoding and decoding happen in the encoder's lanes. Loads the model on first use. Raises what
    Generate raises for the same prompt while it is encoded."""

    def __init__(self, pool: ModelPool, encoder: PromptEncoder) -> None:
        self._pool = pool
        self._encoder = encoder

    async def count(self, request: GenerationRequest) -> int:
        """Counts the tokens of the prompt as the model's template renders it. A prompt that exceeds the context is
        counted too: exactly, or the lower bound that the length of its text proves."""
        try:
            async with self._pool.leased(request.model) as served:
                return len(await self._ids(request, served))
        except ContextOverflow as error:
            return error.num_prompt

    async def tokens(self, request: GenerationRequest, *, with_specials: bool, with_texts: bool) -> Tokenized:
        """`with_specials` False leaves out the special tokens that the tokenizer adds around a text; a chat has only
        those of its template."""
        async with self._pool.leased(request.model) as served:
            ids = await self._ids(request, served)
            if not with_specials and isinstance(request.prompt, TextPrompt):
                ids = _without_specials(ids, served.tokenizer)
            each = self._encoder.decode_each
            texts = await each(ids, served.tokenizer, served.description) if with_texts else None
            return Tokenized(ids, texts, served.description.context_length)

    async def rendered(self, request: GenerationRequest) -> IdRow:
        """Returns the tokens that the model would be given. Raises InvalidRequest, naming the first image of a prompt
        whose images the model sees: their tokens say nothing of what they show."""
        prompt = request.prompt
        async with self._pool.leased(request.model) as served:
            if isinstance(prompt, ChatPrompt) and prompt.images and served.images is not None:
                field = prompt.images[0].field
                raise InvalidRequest(f"{field}: an image cannot be rendered as tokens; leave it out", param=field)
            return await self._ids(request, served)

    async def text(self, model: ModelId, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens, special tokens included. Raises InvalidRequest and ContextOverflow, naming
        `tokens`."""
        async with self._pool.leased(model) as served:
            return await self._encoder.decode(token_ids, served.tokenizer, served.description)

    async def prompt_text(self, request: GenerationRequest) -> str:
        """Returns the text of the tokens that the model would be given."""
        async with self._pool.leased(request.model) as served:
            ids = await self._ids(request, served)
            return await self._encoder.decode(ids, served.tokenizer, served.description)

    async def _ids(self, request: GenerationRequest, served: ServedModel) -> IdRow:
        return (await self._encoder.encode(request, served)).prompt.token_ids


def _without_specials(ids: IdRow, tokenizer: Tokenizer) -> IdRow:
    """Returns the ids without those that encoding an empty text yields, which stand around every text."""
    around = tokenizer.encode("").token_ids
    for num_before in range(len(around), -1, -1):
        before, after = around[:num_before], around[num_before:]
        rest = ids[num_before:]
        if ids[:num_before] == before and rest[len(rest) - len(after) :] == after:
            return rest[: len(rest) - len(after)]
    return ids
