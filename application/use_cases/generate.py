"""One completion: find the model, prepare the prompt, check everything, submit, stream.

All checks happen in `start`, so whatever is wrong with a request is an exception before any byte of an answer.
"""

from collections.abc import AsyncIterator

from application.events import RequestRefused
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.id_source import IdSource
from application.ports.tokenizer import EncodedPrompt
from application.services.engine_loop import EngineLoop
from application.services.model_pool import ModelPool, ServedModel
from application.services.prompt_encoder import PromptEncoder, check_fit
from application.services.sequence_run import Submission
from application.services.stream_hub import RequestStream, StreamHub
from domain.errors import DomainError
from domain.request import ChatPrompt, GenerationRequest
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
        self,
        pool: ModelPool,
        engine: EngineLoop,
        hub: StreamHub,
        ids: IdSource,
        events: EventSink,
        clock: Clock,
        encoder: PromptEncoder,
    ) -> None:
        self._pool = pool
        self._engine = engine
        self._hub = hub
        self._ids = ids
        self._events = events
        self._clock = clock
        self._encoder = encoder

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
            self._events.emit(RequestRefused(request.model, error.code, self._clock.now_ns()))
            raise

    async def _start_reserved(self, request: GenerationRequest) -> Generation:
        served = await self._pool.acquire(request.model)
        try:
            prompt = await self._encoder.encode(request, served.tokenizer, served.description)
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


__all__ = ("Generate", "Generation")
