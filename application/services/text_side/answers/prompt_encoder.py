"""The encoding of a request's prompt to token ids that fit the model, in lanes of its own.

Encoding takes about 200 bytes of memory and a microsecond a character, so long texts are encoded one at a time, short
ones do not wait for them, and neither takes a thread from the rest of the server. A prompt that cannot fit is refused
as early as its length proves it: before encoding, and before ids are checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from application.ports.tokenizer import EncodedPrompt, PromptTooLong, Tokenizer
from application.services.lane import Lane
from application.services.text_side.answers.generated_calls import GeneratedCalls
from application.services.text_side.answers.prompt_images import PromptImages
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow, InvalidRequest
from domain.id_row import IdRow
from domain.models.model_card import ModelDescription
from domain.request.media import Image
from domain.request.pooling import PooledPrompt
from domain.request.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from domain.request.sampling import StopRules

LONG_CHARS = 2**19
"""The length from which texts are encoded one at a time: about half a second of a processor."""

MESSAGE_CHARS = 32
"""The cost of rendering a message besides its text, in characters: templates are interpreted."""

NUM_THREADS = 2


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the engine takes it. `images`: the image of each span, by the span's digest."""

    prompt: EncodedPrompt
    images: Mapping[bytes, Image] = field(default_factory=dict[bytes, Image])


class PromptEncoder:
    """`encode` on the event loop; threads start with the first prompt and end with `close`."""

    def __init__(self, images: PromptImages, calls: GeneratedCalls | None = None) -> None:
        """`images`: measures the images in prompts. `calls`: the generated text of the tool calls in prompts."""
        self._calls = calls or GeneratedCalls()
        self._images = images
        self._lane, self._long_lane = Lane("text", NUM_THREADS), Lane("long-text", 1)

    async def encode(self, request: GenerationRequest, served: ServedModel) -> Encoded:
        """Returns the token ids of any prompt that leaves room for one more token. Raises TemplateFailed,
        ContextOverflow, and as `PromptImages.shown` does."""
        prompt, model, tokenizer = (await self._calls.recalled(request)).prompt, served.description, served.tokenizer
        max_tokens, salt = model.context_length - 1, request.cache_salt
        assert not isinstance(prompt, PooledPrompt), "its texts are encoded by `encode_texts`"
        try:
            if isinstance(prompt, ChatPrompt):
                prompt, rows = await self._images.shown(prompt, served, salt)
                encoded = await self._lane_for(prompt).run(tokenizer.render, prompt, max_tokens, salt, rows)
                images = {rows.tokens[one.digest].digest: one for one in prompt.images} if rows is not None else {}
                return Encoded(encoded, images)
            if isinstance(prompt, TextPrompt):
                return Encoded(await self._lane_for(prompt).run(tokenizer.encode, prompt.text, max_tokens, salt))
            if len(prompt.token_ids) > max_tokens:
                raise PromptTooLong(len(prompt.token_ids))
        except PromptTooLong as error:
            raise _overflow(model, prompt_field(prompt), error.num_tokens, is_exact=error.is_exact) from None
        return Encoded(EncodedPrompt.of_text(prompt.token_ids))

    async def predicted(self, request: GenerationRequest, tokenizer: Tokenizer, model: ModelDescription) -> IdRow:
        """Returns the ids of the request's prediction; empty without one, or where nothing is drafted. Raises
        ContextOverflow for one that is longer than the context."""
        text = request.prediction if request.speculates else ""
        if not text:
            return IdRow()
        encode = self.lane_of(len(text)).run
        try:
            return (await encode(tokenizer.encode, text, model.context_length, request.cache_salt)).token_ids
        except PromptTooLong as error:
            raise _overflow(model, "prediction", error.num_tokens, is_exact=error.is_exact) from None

    async def decode(self, token_ids: Sequence[int], tokenizer: Tokenizer, model: ModelDescription) -> str:
        """Returns the text, special tokens included. Raises InvalidRequest and ContextOverflow, naming `tokens`."""
        self._check_tokens(token_ids, model)
        return await self.lane_of(len(token_ids)).run(tokenizer.decode, token_ids)

    async def decode_each(
        self, token_ids: Sequence[int], tokenizer: Tokenizer, model: ModelDescription
    ) -> tuple[str, ...]:
        """Returns the text of each token on its own. Raises as `decode` does."""
        self._check_tokens(token_ids, model)
        lane = self.lane_of(len(token_ids))
        return await lane.run(lambda: tuple([tokenizer.decode((id,)) for id in token_ids]))

    def close(self) -> None:
        """Stops the lanes without waiting; a prompt that is being encoded is dropped."""
        self._lane.close()
        self._long_lane.close()
        self._images.close()

    def _lane_for(self, prompt: ChatPrompt | TextPrompt) -> Lane:
        return self.lane_of(_num_chars(prompt))

    def lane_of(self, num_chars: int) -> Lane:
        return self._long_lane if num_chars >= LONG_CHARS else self._lane

    def _check_tokens(self, token_ids: Sequence[int], model: ModelDescription) -> None:
        if len(token_ids) > model.context_length:
            message = f"tokens has {len(token_ids)} tokens; the context of {model.id} holds {model.context_length}"
            raise ContextOverflow(
                message, param="tokens", num_prompt=len(token_ids), context_length=model.context_length
            )
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= model.vocab_size):
            raise _outside("tokens", model)


def _num_chars(prompt: ChatPrompt | TextPrompt) -> int:
    """Returns the length of all texts plus a constant for each message; the rendered length is not known before
    rendering."""
    if isinstance(prompt, TextPrompt):
        return len(prompt.text)
    return len(prompt.messages) * MESSAGE_CHARS + sum(
        len(message.content) + len(message.reasoning or "") + sum(len(call.arguments) for call in message.tool_calls)
        for message in prompt.messages
    )


def check_fit(request: GenerationRequest, prompt: EncodedPrompt, tokenizer: Tokenizer, model: ModelDescription) -> int:
    """Returns the most tokens for the completion. Raises InvalidRequest or ContextOverflow, naming the field."""
    field = prompt_field(request.prompt)
    num_prompt = len(prompt.token_ids)
    if num_prompt == 0:
        raise InvalidRequest(f"{field} must not be empty", param=field)
    room = model.context_length - num_prompt
    if room < 1:
        raise _overflow(model, field, num_prompt)
    # Checking every id of a long prompt takes milliseconds, and is needed only where the tokenizer has more ids.
    is_made = not isinstance(request.prompt, TokenPrompt) and tokenizer.vocab_size <= model.vocab_size
    if not is_made and max(prompt.token_ids) >= model.vocab_size:
        raise _outside(field, model)
    request.sampling.check_vocabulary(model.vocab_size)
    return _completion_length(request.stop, num_prompt, room, model)


def _outside(field: str, model: ModelDescription) -> InvalidRequest:
    message = f"{field} contains a token id outside the vocabulary (0 to {model.vocab_size - 1})"
    return InvalidRequest(message, param=field)


def _overflow(model: ModelDescription, field: str, num_prompt: int, *, is_exact: bool = True) -> ContextOverflow:
    count = str(num_prompt) if is_exact else f"at least {num_prompt}"
    return ContextOverflow(
        f"{field} has {count} tokens, but the context of {model.id} holds {model.context_length} with the answer",
        param=field,
        num_prompt=num_prompt,
        context_length=model.context_length,
    )


def prompt_field(prompt: Prompt) -> str:
    """The client's name for the prompt."""
    if isinstance(prompt, PooledPrompt):
        return prompt.field
    return "messages" if isinstance(prompt, ChatPrompt) else "prompt"


def _completion_length(rules: StopRules, num_prompt: int, room: int, model: ModelDescription) -> int:
    max_tokens = rules.max_tokens or 0
    if rules.fits_room:
        max_tokens = min(max_tokens, room)
    for name, wanted in (("max_tokens", max_tokens), ("min_tokens", rules.min_tokens)):
        if wanted > room:
            raise ContextOverflow(
                f"{name} is {wanted}, but after {num_prompt} prompt tokens the context of {model.id}"
                f" ({model.context_length}) has room for {room}",
                param=name,
                num_prompt=num_prompt,
                num_wanted=wanted,
                context_length=model.context_length,
            )
    return room if rules.max_tokens is None else max_tokens
