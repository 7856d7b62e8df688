"""Generation, the use case behind every dialect's completions: find the model, prepare the prompt, check, submit.

All checks happen before `answering` yields, so that an invalid request raises before any byte of an answer is sent.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, closing
from dataclasses import replace

from application.ports.clock import IdSource
from application.ports.engine import Engine, Submission
from application.ports.event_sink import ContentSink
from application.services.text_side.answers.answer import Answer
from application.services.text_side.answers.answer_grammar import GrammarCheck
from application.services.text_side.answers.choice import Choice, PlainParser
from application.services.text_side.answers.generated_calls import GeneratedCalls
from application.services.text_side.answers.memory_check import MemoryCheck
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import PromptEncoder, check_fit
from application.services.text_side.models.model_finder import ServedModel
from application.services.text_side.models.model_pool import ModelPool
from domain.errors import InvalidRequest
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.reasoning_budget import ReasoningBudget
from domain.request.request import ChatPrompt, GenerationRequest

MAX_PROMPT_LOGPROBS = 2**19
"""Values of prompt tokens and their alternatives in one answer: some 100 MB while it is made."""


class Generate:
    """Event loop only."""

    def __init__(
        self,
        *,
        pool: ModelPool,
        engine: Engine,
        requests: OpenRequests,
        ids: IdSource,
        encoder: PromptEncoder,
        grammars: GrammarCheck | None = None,
        calls: GeneratedCalls | None = None,
        content: ContentSink | None = None,
    ) -> None:
        """`grammars`: None refuses every request that has one. `calls`: where generated tool calls are kept.
        `content`: takes the text of prompts and answers; None where it is not recorded."""
        self._pool = pool
        self._engine = engine
        self._requests = requests
        self._encoder = encoder
        self._memory = MemoryCheck(engine, pool)
        self._ids = ids
        self._grammars = grammars or GrammarCheck()
        self._calls = calls or GeneratedCalls()
        self._content = content

    def enclosing(self, request: GenerationRequest) -> AbstractContextManager[None]:
        """Encloses an answer of several requests, as `OpenRequests.enclosing` does."""
        return self._requests.enclosing(request)

    @asynccontextmanager
    async def answering(
        self, requests: Sequence[GenerationRequest], lease: ServedModel | None = None
    ) -> AsyncGenerator[Answer]:
        """Encloses the stay of one client request: yields its answer once its prompts, all for one model, are checked
        and submitted in order. However the block ends, what still runs is cancelled and nothing is held. Raises any
        DomainError.

        `lease`: a model that the caller has leased. A lease on the same model is then shared at once: a caller that
        holds one and waits in the queue for another could wait for itself.
        """
        is_shared = lease is not None and lease.source.id == requests[0].model and self._pool.share(lease)
        with closing(Answer(self._engine, self._pool, lease if is_shared else None)) as answer:
            for request in requests:
                async with self._requests.entering(request, answer) as entered:
                    await self._submit(entered, answer)
            answer.complete()
            yield answer

    async def _submit(self, request: GenerationRequest, answer: Answer) -> None:
        """Encodes, checks and submits a prompt."""
        served = answer.model
        sampling = self._pool.sampling(served).apply(request.sampling)
        request = replace(request, sampling=sampling, stop=request.stop.with_default(served.repetition))
        encoded = await self._encoder.encode(request, served)
        prompt = encoded.prompt
        max_new_tokens = check_fit(request, prompt, served.tokenizer, served.description)
        _check_scores(request, len(prompt.token_ids), answer)
        max_new_tokens = await self._memory.answer_length(request, prompt, served.description, max_new_tokens)
        request = await self._grammars.constrain(request, served.tokenizer, served.description, prompt.token_ids)
        predicted_ids = await self._encoder.predicted(request, served.tokenizer, served.description)
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
            stop_token_ids=request.stop.token_ids,
            cache_salt=request.cache_salt,
            persist=request.persist,
            num_choices=request.num_choices,
            grammar=request.grammar,
            reasoning_budget=_reasoning_budget(request, served, prompt.token_ids),
            num_prompt_logprobs=request.num_prompt_logprobs,
            priority=request.priority,
            speculates=request.speculates,
            predicted_ids=predicted_ids,
        )
        choices = [self._choice(request, number, served, prompt) for number in range(request.num_choices)]
        self._requests.submit(answer, submission, choices, encoded.images)
        for choice in choices:
            if self._content is not None:
                self._content.asked(choice.id, request.prompt)

    def _choice(self, request: GenerationRequest, number: int, served: ServedModel, encoded: EncodedPrompt) -> Choice:
        prompt, prompt_ids, tokenizer, family = request.prompt, encoded.token_ids, served.tokenizer, ""
        if isinstance(prompt, ChatPrompt):
            parser = tokenizer.output_parser(prompt, prompt_ids, self._ids.call_id)
            family = tokenizer.output_format.partition(" ")[0]
        else:
            parser = PlainParser(tokenizer.detokenizer(prompt_ids))
        num_image_tokens = sum(span.length for span in encoded.media)
        return Choice(request, number, len(prompt_ids), parser, family, self._content, num_image_tokens, self._calls)


def _check_scores(request: GenerationRequest, num_prompt: int, answer: Answer) -> None:
    """Raises InvalidRequest if an answer would hold too many prompt log probabilities."""
    if request.num_prompt_logprobs is None:
        return
    num_tokens = sum(map(len, answer.prompts)) + num_prompt
    num_values = num_tokens * (1 + request.num_prompt_logprobs) * request.num_choices
    if num_values > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"prompt_logprobs would report {num_values} values in one answer, at most {MAX_PROMPT_LOGPROBS} are"
            " allowed: send fewer prompts at once, or ask for fewer alternatives",
            param="prompt_logprobs",
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
            f"reasoning_budget is not supported for {served.source.id}: no tokens are known that end its reasoning",
            param="reasoning_budget",
        )
    return None
