"""The encoding of a request's prompt to token ids that fit the model, in lanes of its own.

Encoding takes about 200 bytes of memory and a microsecond a character, so long texts are encoded one at a time, shorter
ones do not wait for them, and none takes a thread from the rest of the server. In each lane clients take turns by the
length of their texts. A prompt that cannot fit is refused as early as its length proves it: before it waits, before
encoding, and before ids are checked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, TypeVar

from application.ports.tokenizer import EncodedPrompt, PromptTooLong, Tokenizer, check_length
from application.services.lane import Lane
from application.services.text_side.answers.generated_calls import GeneratedCalls
from application.services.text_side.answers.prompt_files import PromptFiles
from application.services.text_side.answers.prompt_images import PromptImages, WantedImages
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ContextOverflow, InvalidRequest
from domain.id_row import IdRow
from domain.models.model_card import ModelDescription
from domain.request.chat import Json
from domain.request.pooling import PooledPrompt
from domain.request.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt, TokenPrompt
from domain.request.sampling import StopRules

LONG_CHARS, HUGE_CHARS = 2**14, 2**19
"""The lengths from which texts are encoded one at a time: some 16 ms of a processor and half a second, the longest that
a shorter text waits for another client's."""

VALUE_CHARS = 8
"""The cost of rendering a value besides its text, in characters: templates are interpreted."""

DECODED_CHARS = 4
"""The cost of decoding a token, in characters."""

NUM_THREADS = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Encoded:
    """A prompt as the engine takes it. `images`: those of its spans, for when the engine wants them."""

    prompt: EncodedPrompt
    images: WantedImages | None = None


class PromptEncoder:
    """`encode` on the event loop; threads start with the first prompt and end with `close`."""

    def __init__(self, images: PromptImages, files: PromptFiles, calls: GeneratedCalls | None = None) -> None:
        """`images`, `files`: process those in prompts. `calls`: the generated text of the tool calls in prompts."""
        self._calls = calls or GeneratedCalls()
        self._images, self._files = images, files
        self._lanes = Lane("text", NUM_THREADS), Lane("long-text", 1), Lane("huge-text", 1)

    async def encode(self, request: GenerationRequest, served: ServedModel) -> Encoded:
        """Returns the token ids of any prompt that leaves room for one more token. Raises TemplateFailed,
        ContextOverflow, and as `PromptFiles.as_text` and `PromptImages.shown` do."""
        prompt, model, tokenizer = (await self._calls.recalled(request)).prompt, served.description, served.tokenizer
        max_tokens, salt = model.context_length - 1, request.cache_salt
        assert not isinstance(prompt, PooledPrompt), "its texts are encoded by `encode_texts`"
        try:
            if isinstance(prompt, ChatPrompt):
                prompt = await self._files.as_text(prompt, salt)
                prompt, rows = await self._images.shown(prompt, served, salt)
                num_chars = _num_chars(prompt, LONG_CHARS)
                if num_chars >= LONG_CHARS:
                    num_chars = await self.run(num_chars, _num_chars, prompt)
                encoded = await self.run(num_chars, tokenizer.render, prompt, max_tokens, salt, rows)
                return Encoded(encoded, self._images.wanted(prompt, rows, served, salt))
            if isinstance(prompt, TextPrompt):
                return Encoded(await self._encoded(prompt.text, tokenizer, max_tokens, salt))
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
        try:
            return (await self._encoded(text, tokenizer, model.context_length, request.cache_salt)).token_ids
        except PromptTooLong as error:
            raise _overflow(model, "prediction", error.num_tokens, is_exact=error.is_exact) from None

    async def decode(self, token_ids: Sequence[int], tokenizer: Tokenizer, model: ModelDescription) -> str:
        """Returns the text, special tokens included. Raises InvalidRequest and ContextOverflow, naming `tokens`."""
        self._check_tokens(token_ids, model)
        return await self.run(len(token_ids) * DECODED_CHARS, tokenizer.decode, token_ids)

    async def decode_each(
        self, token_ids: Sequence[int], tokenizer: Tokenizer, model: ModelDescription
    ) -> tuple[str, ...]:
        """Returns the text of each token on its own. Raises as `decode` does."""
        self._check_tokens(token_ids, model)
        num_chars = len(token_ids) * DECODED_CHARS
        return await self.run(num_chars, lambda: tuple([tokenizer.decode((id,)) for id in token_ids]))

    def close(self) -> None:
        """Stops the lanes without waiting; a prompt that is being encoded is dropped."""
        for lane in self._lanes:
            lane.close()
        self._images.close()
        self._files.close()

    async def run(self, num_chars: int, work: Callable[..., T], *args: Any) -> T:
        """Returns `work(*args)`, which costs as much as encoding a text of `num_chars`."""
        lane = self._lanes[(num_chars >= LONG_CHARS) + (num_chars >= HUGE_CHARS)]
        return await lane.run_at(num_chars + 1, work, *args)

    async def _encoded(self, text: str, tokenizer: Tokenizer, max_tokens: int, salt: str) -> EncodedPrompt:
        """Raises PromptTooLong, at once where the length proves it."""
        check_length(len(text), tokenizer.max_token_chars, max_tokens)
        return await self.run(len(text), tokenizer.encode, text, max_tokens, salt)

    def _check_tokens(self, token_ids: Sequence[int], model: ModelDescription) -> None:
        if len(token_ids) > model.context_length:
            message = f"tokens has {len(token_ids)} tokens; the context of {model.id} holds {model.context_length}"
            raise ContextOverflow(
                message, param="tokens", num_prompt=len(token_ids), context_length=model.context_length
            )
        if token_ids and (min(token_ids) < 0 or max(token_ids) >= model.vocab_size):
            raise _outside("tokens", model)


def _num_chars(prompt: ChatPrompt, most: float = inf) -> int:
    """Returns the length of all texts plus a constant for each value; the rendered length is not known before
    rendering. Stops at `most`: large tools take milliseconds, which the event loop does not have."""
    waiting: list[Json] = [[tool.name, tool.description, dict(tool.parameters)] for tool in prompt.tools]
    waiting.append(dict(prompt.template_kwargs))
    for message in prompt.messages:
        waiting += message.content, message.reasoning, message.name, message.tool_call_id
        waiting += [text for call in message.tool_calls for text in (call.id, call.name, call.arguments)]
    num_chars = 0
    while waiting and num_chars < most:
        one = waiting.pop()
        num_chars += VALUE_CHARS + (len(one) if isinstance(one, str) else 0)
        if isinstance(one, dict):
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return num_chars


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
    if rules.min_tokens > room:
        raise ContextOverflow(
            f"min_tokens is {rules.min_tokens}, but after {num_prompt} prompt tokens the context of {model.id}"
            f" ({model.context_length}) has room for {room}",
            param="min_tokens",
            num_prompt=num_prompt,
            context_length=model.context_length,
        )
    return room if rules.max_tokens is None else min(rules.max_tokens, room)
