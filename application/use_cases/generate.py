"""Generation, the use case behind every dialect's completions: find the model, prepare the prompt, check, submit.

All checks happen in `start`, so that an invalid request raises before any byte of an answer is sent.
"""

from collections.abc import Sequence
from dataclasses import replace

from application.ports.clock import Clock, IdSource
from application.ports.engine import Engine, Submission
from application.ports.event_sink import ContentSink, EventSink
from application.services.text_side.answers.answer import Answer
from application.services.text_side.answers.answer_grammar import GrammarCheck
from application.services.text_side.answers.choice import Choice, PlainParser
from application.services.text_side.answers.generated_calls import GeneratedCalls
from application.services.text_side.answers.intake import Intake
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
        events: EventSink,
        clock: Clock,
        encoder: PromptEncoder,
        grammars: GrammarCheck | None = None,
        calls: GeneratedCalls | None = None,
        content: ContentSink | None = None,
    ) -> None:
        """`grammars`: None refuses every request that has one. `calls`: where generated tool calls are kept.
        `content`: takes the text of prompts and answers; None where it is not recorded."""
        self._intake = Intake(pool, engine, requests, events, clock, encoder)
        self._memory = MemoryCheck(engine, pool)
        self._ids = ids
        self._grammars = grammars or GrammarCheck()
        self._calls = calls or GeneratedCalls()
        self._content = content

    async def start(self, requests: Sequence[GenerationRequest], lease: ServedModel | None = None) -> Answer:
        """Checks and submits the prompts of one client request, in order, all for one model. Raises any DomainError;
        nothing is held afterwards if it does.

        `lease`: a model that the caller has leased. A lease on the same model is then shared at once: a caller that
        holds one and waits in the queue for another could wait for itself.
        """
        answer: Answer | None = None
        try:
            for request in requests:
                answer = await self._intake.start(request, self._submit, answer, lease)
            assert answer is not None, "at least one prompt"
            answer.complete()
        except BaseException:
            if answer is not None:
                answer.close()
            raise
        return answer

    async def _submit(self, request: GenerationRequest, answer: Answer) -> None:
        """Encodes, checks and submits a prompt."""
        served = answer.model
        request = replace(request, sampling=served.sampling.apply(request.sampling))
        encoded = await self._intake.encoder.encode(request, served)
        prompt = encoded.prompt
        max_new_tokens = check_fit(request, prompt, served.tokenizer, served.description)
        _check_scores(request, len(prompt.token_ids), answer)
        max_new_tokens = await self._memory.answer_length(request, prompt, served.description, max_new_tokens)
        request = await self._grammars.constrain(request, served.tokenizer, served.description, prompt.token_ids)
        predicted_ids = await self._intake.encoder.predicted(request, served.tokenizer, served.description)
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
            speculates=request.speculates,
            predicted_ids=predicted_ids,
        )
        choices = [self._choice(request, number, served, prompt) for number in range(request.num_choices)]
        self._intake.submit(request, submission, answer, choices, encoded.images)
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
        keep = self._calls.keeper(request, served.source.id)
        return Choice(request, number, len(prompt_ids), parser, family, self._content, num_image_tokens, keep)


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
