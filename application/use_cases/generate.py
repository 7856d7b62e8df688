"""One prompt and its completions: find the model, prepare the prompt, check everything, submit, stream.

All checks happen in `start`, so whatever is wrong with a request is an exception before any byte of an answer.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from application.events import RequestQueued, RequestRefused
from application.ports.clock import Clock
from application.ports.content_sink import ContentSink
from application.ports.engine import Engine, Submission
from application.ports.event_sink import EventSink
from application.ports.id_source import IdSource
from application.services.text_side.answers.generated_calls import GeneratedCalls
from application.services.text_side.answers.generation import Generation
from application.services.text_side.answers.grammar_check import GrammarCheck
from application.services.text_side.answers.memory_check import MemoryCheck
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.output_pipeline import OutputPipeline
from application.services.text_side.answers.prompt_encoder import PromptEncoder, check_fit
from application.services.text_side.answers.token_parser import PlainParser
from application.services.text_side.models.model_pool import ModelPool
from application.services.text_side.models.served_model import ServedModel
from domain.errors import DomainError, InvalidRequest
from domain.ids import ModelId
from domain.request.reasoning_budget import ReasoningBudget
from domain.request.request import ChatPrompt, GenerationRequest, choice_id, choice_seed
from domain.shown import shown


class Generate:
    """The use case every dialect's completion goes through. Event loop only."""

    def __init__(
        self,
        *,
        pool: ModelPool,
        engine: Engine,
        requests: OpenRequests,
        ids: IdSource,
        events: EventSink,
        clock: Clock,
        encoder: PromptEncoder,
        grammars: GrammarCheck | None = None,
        calls: GeneratedCalls | None = None,
        content: ContentSink | None = None,
    ) -> None:
        """`grammars`: None refuses every request that has one. `calls`: where generated tool calls are kept.
        `content`: who is told what is said; None for nobody."""
        self._pool = pool
        self._engine = engine
        self._requests = requests
        self._ids = ids
        self._events = events
        self._clock = clock
        self._encoder = encoder
        self._memory = MemoryCheck(engine, pool)
        self._grammars = grammars or GrammarCheck()
        self._calls = calls or GeneratedCalls()
        self._content = content

    async def start(self, request: GenerationRequest, beside: ServedModel | None = None) -> Generation:
        """Check and submit. Raises any DomainError; nothing is held afterwards if it does.

        `beside`: a model on which the caller has a lease, or had: while anybody has one, another does not wait for
        room. Who holds a lease and waits for a second one would otherwise wait for whoever waits for the first.
        """
        started_ns = self._clock.now_ns()
        if request.asked_ns is None:
            request = replace(request, asked_ns=started_ns)
        try:
            self._requests.reserve(request.num_choices)
            try:
                with self._requests.preparations.of(request, started_ns) as preparation:
                    is_shared = beside is not None and beside.source.id == request.model and self._pool.share(beside)
                    served = beside if beside is not None and is_shared else await self._pool.acquire(request.model)
                    preparation.has_model = True
                    try:
                        return await self._submit(request, served)
                    except BaseException:
                        self._pool.release(served)
                        raise
            except BaseException:
                self._requests.release(request.num_choices)
                raise
        except DomainError as error:
            self._events.emit(
                RequestRefused(
                    ModelId(shown(request.model)),
                    error.code,
                    self._clock.now_ns(),
                    started_ns,
                    isinstance(request.prompt, ChatPrompt),
                    request.trace_carrier,
                )
            )
            raise

    async def _submit(self, request: GenerationRequest, served: ServedModel) -> Generation:
        """From here on the generation holds the lease, and the engine the places."""
        request = replace(request, sampling=served.sampling.apply(request.sampling))
        prompt = await self._encoder.encode(request, served.tokenizer, served.description)
        max_new_tokens = check_fit(request, prompt, served.tokenizer, served.description)
        max_new_tokens = await self._memory.answer_length(request, prompt, served.description, max_new_tokens)
        request = await self._grammars.hold(request, served.tokenizer, served.description, prompt.token_ids)
        submission = Submission(
            id=request.id,
            model=served.source.id,
            prompt=prompt,
            sampling=request.sampling,
            seed=request.sampling.seed if request.sampling.seed is not None else self._ids.seed(),
            max_new_tokens=max_new_tokens,
            min_tokens=request.stop.min_tokens,
            # Some models name their end tokens in one place only.
            eos_token_ids=served.description.eos_token_ids | served.tokenizer.eos_token_ids,
            ignore_eos=request.stop.ignore_eos,
            cache_salt=request.cache_salt,
            persist=request.persist,
            num_choices=request.num_choices,
            grammar=request.grammar,
            reasoning_budget=_reasoning_budget(request, served, prompt.token_ids),
            num_prompt_logprobs=request.num_prompt_logprobs,
            priority=request.priority,
        )
        generation = Generation(
            request,
            submission,
            model=served,
            engine=self._engine,
            pipelines=[self._pipeline(request, served, prompt.token_ids) for _ in range(request.num_choices)],
            release=partial(self._pool.release, served),
            content=self._content,
        )
        queued_ns = self._clock.now_ns()  # before the engine can admit it
        self._engine.submit(submission)
        self._requests.add(generation)
        for choice in range(request.num_choices):
            if self._content is not None:
                self._content.asked(choice_id(request.id, choice), request.prompt)
            self._events.emit(self._queued(request, submission, choice, queued_ns))
        return generation

    def _pipeline(self, request: GenerationRequest, served: ServedModel, prompt_ids: Sequence[int]) -> OutputPipeline:
        prompt, tokenizer = request.prompt, served.tokenizer
        if not isinstance(prompt, ChatPrompt):
            return OutputPipeline(PlainParser(tokenizer.detokenizer(prompt_ids)), request.stop)
        make = partial(tokenizer.output_parser, prompt, prompt_ids)
        parser = self._calls.parser(request, served.source.id, self._ids.call_id, make)
        return OutputPipeline(parser, request.stop, prompt.tools, tokenizer.output_format.partition(" ")[0])

    def _queued(self, request: GenerationRequest, submission: Submission, choice: int, queued_ns: int) -> RequestQueued:
        sampling = request.sampling
        if sampling.seed is not None and choice:
            sampling = replace(sampling, seed=choice_seed(sampling.seed, choice))
        return RequestQueued(
            id=choice_id(request.id, choice),
            model=submission.model,
            requested_model=request.model,
            is_chat=isinstance(request.prompt, ChatPrompt),
            num_prompt_tokens=len(submission.prompt.token_ids),
            at_ns=queued_ns,
            sampling=sampling,
            max_tokens=request.stop.max_tokens,
            num_stop_strings=len(request.stop.stop),
            trace_carrier=request.trace_carrier,
            client=request.client,
            operation=request.operation,
            priority=request.priority.value,
            choice=choice,
        )


def _reasoning_budget(
    request: GenerationRequest, served: ServedModel, prompt_ids: Sequence[int]
) -> ReasoningBudget | None:
    limit, prompt = request.reasoning, request.prompt
    if limit is None or not isinstance(prompt, ChatPrompt):
        return None
    marks = served.tokenizer.reasoning_marks(prompt, prompt_ids)
    if marks is not None:
        return ReasoningBudget(limit.num_tokens, marks)
    if limit.is_firm:
        raise InvalidRequest(
            f"no tokens are known that end the reasoning of {served.source.id}, so that it cannot be bounded",
            param="reasoning_budget",
        )
    return None
