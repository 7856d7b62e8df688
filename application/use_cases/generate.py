"""One completion: find the model, prepare the prompt, check everything, submit, stream.

All checks happen in `start`, so whatever is wrong with a request is an exception before any byte of an answer.
"""

import asyncio
from collections.abc import AsyncIterator

from application.events import RequestRefused
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.id_source import IdSource
from application.ports.tokenizer import EncodedPrompt, Tokenizer
from application.services.engine_loop import EngineLoop
from application.services.model_pool import ModelPool, ServedModel
from application.services.sequence_run import Submission
from application.services.stream_hub import RequestStream, StreamHub
from domain.errors import ContextOverflow, DomainError, InvalidRequest
from domain.ids import ModelId
from domain.model_card import ModelDescription
from domain.request import ChatPrompt, GenerationRequest, Prompt, TextPrompt
from domain.sampling import StopRules
from domain.shown import shown
from domain.stream import StreamItem


class Generation:
    """A submitted request. Iterate it once for its items; `close` it in any case, which cancels what still runs."""

    def __init__(
        self,
        request: GenerationRequest,
        prompt: EncodedPrompt,
        served: ServedModel,
        stream: RequestStream,
        owner: "Generate",
    ) -> None:
        self.request = request
        self.prompt_ids = prompt.token_ids
        self.model = served
        self._stream = stream
        self._owner = owner
        self._open = True

    def __aiter__(self) -> AsyncIterator[StreamItem]:
        return aiter(self._stream)

    def close(self) -> None:
        """Idempotent. Cancels within one engine step if the request has not ended."""
        if self._open:
            self._open = False
            self._owner.release(self)


class Generate:
    """The use case every dialect's completion goes through. Event loop only."""

    def __init__(
        self, pool: ModelPool, engine: EngineLoop, hub: StreamHub, ids: IdSource, events: EventSink, clock: Clock
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._hub = hub
        self._ids = ids
        self._events = events
        self._clock = clock

    async def start(self, request: GenerationRequest) -> Generation:
        """Check and submit. Raises any DomainError; nothing is held afterwards if it does."""
        try:
            self._engine.reserve()
            try:
                return await self._start_reserved(request)
            except BaseException:
                self._engine.release_reservation()
                raise
        except DomainError as error:
            self._events.emit(RequestRefused(ModelId(shown(request.model)), error.code, self._clock.now_ns()))
            raise

    async def _start_reserved(self, request: GenerationRequest) -> Generation:
        served = await self._pool.acquire(request.model)
        try:
            prompt = await encode_prompt(served.tokenizer, request.prompt)
            max_new_tokens = check_fit(request, prompt, served.description)
            stream = self._hub.open(request.id)
            try:
                seed = request.sampling.seed if request.sampling.seed is not None else self._ids.seed()
                follows = () if isinstance(request.prompt, ChatPrompt) else prompt.token_ids  # a reply starts afresh
                detokenizer = served.tokenizer.detokenizer(follows)
                # Some models name their end tokens in one place only.
                eos = served.description.eos_token_ids | served.tokenizer.eos_token_ids
                self._engine.submit(
                    Submission(request, prompt, max_new_tokens, seed, detokenizer, served.source.id, eos)
                )
            except BaseException:
                self._hub.discard(request.id)
                raise
        except BaseException:
            self._pool.release(served)
            raise
        return Generation(request, prompt, served, stream, self)

    def release(self, generation: Generation) -> None:
        """For Generation.close."""
        self._engine.cancel(generation.request.id)
        self._hub.discard(generation.request.id)
        self._pool.release(generation.model)


async def encode_prompt(tokenizer: Tokenizer, prompt: Prompt) -> EncodedPrompt:
    """Token ids of any prompt; text work happens off the event loop."""
    if isinstance(prompt, ChatPrompt):
        return await asyncio.to_thread(tokenizer.render, prompt)
    if isinstance(prompt, TextPrompt):
        return await asyncio.to_thread(tokenizer.encode, prompt.text)
    return EncodedPrompt(prompt.token_ids)


def check_fit(request: GenerationRequest, prompt: EncodedPrompt, model: ModelDescription) -> int:
    """The number of tokens the completion may have. Raises InvalidRequest or ContextOverflow, naming the field."""
    field = "messages" if isinstance(request.prompt, ChatPrompt) else "prompt"
    num_prompt = len(prompt.token_ids)
    if num_prompt == 0:
        raise InvalidRequest(f"{field} must not be empty", param=field)
    if min(prompt.token_ids) < 0 or max(prompt.token_ids) >= model.vocab_size:
        raise InvalidRequest(
            f"{field} holds a token id outside the vocabulary (0 to {model.vocab_size - 1})", param=field
        )
    request.sampling.check_vocabulary(model.vocab_size)
    room = model.context_length - num_prompt
    if room < 1:
        raise ContextOverflow(
            f"{field} has {num_prompt} tokens; the context of {model.id} holds {model.context_length}", param=field
        )
    return _completion_length(request.stop, num_prompt, room, model)


def _completion_length(rules: StopRules, num_prompt: int, room: int, model: ModelDescription) -> int:
    for name, wanted in (("max_tokens", rules.max_tokens or 0), ("min_tokens", rules.min_tokens)):
        if wanted > room:
            raise ContextOverflow(
                f"{name} is {wanted}, but after {num_prompt} prompt tokens the context of {model.id}"
                f" ({model.context_length}) has room for {room}",
                param=name,
            )
    return rules.max_tokens or room


__all__ = ("Generate", "Generation", "check_fit", "encode_prompt")
