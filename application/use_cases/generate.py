"""One completion: find the model, prepare the prompt, check everything, submit, stream.

All checks happen in `start`, so whatever is wrong with a request is an exception before any byte of an answer.
"""

from collections.abc import AsyncIterator
from functools import partial

from application.events import RequestRefused
from application.ports.clock import Clock
from application.ports.event_sink import EventSink
from application.ports.id_source import IdSource
from application.ports.tokenizer import EncodedPrompt
from application.services.prompt_encoder import PromptEncoder, check_fit
from application.services.text_side.model_pool import ModelPool, ServedModel
from application.services.text_side.stream_hub import RequestStream, StreamHub
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.sequence_run import Submission
from domain.errors import DomainError
from domain.ids import ModelId, RequestId
from domain.request import ChatPrompt, GenerationRequest
from domain.shown import shown
from domain.stream import Failed, StreamItem


class _Lease:
    """One lease on a model, given back once."""

    def __init__(self, pool: ModelPool, served: ServedModel) -> None:
        self.served = served
        self._pool: ModelPool | None = pool

    def release(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.release(self.served)


class Generation:
    """A submitted request. Iterate it once for its items; `close` it in any case, which cancels what still runs.

    Its lease on the model is over when it has ended in the engine, however long its client takes to read.
    """

    def __init__(
        self, request: GenerationRequest, prompt: EncodedPrompt, lease: _Lease, stream: RequestStream, owner: "Generate"
    ) -> None:
        self.request = request
        self.prompt_ids = prompt.token_ids
        self.model = lease.served
        self._lease = lease
        self._stream = stream
        self._owner = owner
        self._open = True

    def __aiter__(self) -> AsyncIterator[StreamItem]:
        return aiter(self._stream)

    def close(self) -> None:
        """Idempotent. Cancels within one engine step if the request has not ended."""
        if self._open:
            self._open = False
            self._owner.leave(self.request.id, has_ended=self._stream.end is not None)
            self._lease.release()


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

    async def start(self, request: GenerationRequest, beside: ServedModel | None = None) -> Generation:
        """Check and submit. Raises any DomainError; nothing is held afterwards if it does.

        `beside`: a model on which the caller has a lease, or had: while anybody has one, another does not wait for
        room. Who holds a lease and waits for a second one would otherwise wait for whoever waits for the first.
        """
        try:
            self._engine.reserve()
            try:
                return await self._start_reserved(request, beside)
            except BaseException:
                self._engine.release_reservation()
                raise
        except DomainError as error:
            self._events.emit(RequestRefused(ModelId(shown(request.model)), error.code, self._clock.now_ns()))
            raise

    async def _start_reserved(self, request: GenerationRequest, beside: ServedModel | None) -> Generation:
        is_shared = beside is not None and beside.source.id == request.model and self._pool.share(beside)
        served = beside if beside is not None and is_shared else await self._pool.acquire(request.model)
        lease = _Lease(self._pool, served)
        try:
            prompt = await self._encoder.encode(request, served.tokenizer, served.description)
            max_new_tokens = check_fit(request, prompt, served.description)
            stream = self._hub.open(request.id, partial(self._ended, request.id, lease))
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
            lease.release()
            raise
        return Generation(request, prompt, lease, stream, self)

    def leave(self, id: RequestId, *, has_ended: bool) -> None:
        """For Generation.close."""
        if not has_ended:
            self._engine.cancel(id)
        self._hub.discard(id)

    def _ended(self, id: RequestId, lease: _Lease, item: StreamItem) -> None:
        lease.release()
        if isinstance(item, Failed):  # its stream may have failed, and not the engine
            self._engine.cancel(id)


__all__ = ("Generate", "Generation")
