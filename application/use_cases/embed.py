"""Vectors and scores of texts: find the model, encode and group the texts, check, submit the groups, collect.

A group is a prompt and the rows that end it (`text_groups`). It goes through queue, prefix cache and scheduler like any
request for a generation; those of one request have the ids of its choices.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from application.ports.clock import Clock
from application.ports.engine import Engine, Submission
from application.ports.event_sink import EventSink
from application.services.text_side.answers.answer import Answer, failure
from application.services.text_side.answers.choice import Choice, PlainParser
from application.services.text_side.answers.intake import Intake
from application.services.text_side.answers.memory_check import MemoryCheck
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import PromptEncoder
from application.services.text_side.answers.text_groups import TextGroup
from application.services.text_side.models.model_pool import ModelPool
from domain.prefix.prompt_content import EncodedPrompt
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest, choice_id
from domain.request.sampling import SamplingParams
from domain.request.stream import Finished, Pooled

MAX_OPEN = 4
"""The most groups of one request that wait or are computed at a time; more would hold memory and compute no faster."""


@dataclass(frozen=True, slots=True)
class PooledTexts:
    """The values of a request's texts, in order. Each is a row of little-endian float32 numbers: a vector, or one
    score. `num_tokens`: of all texts; `num_cached`: those of them that were not computed for it, because they were
    kept, or are the beginning or the whole of another of its texts."""

    values: tuple[bytes, ...]
    num_tokens: int
    num_cached: int


class Embed:
    """Event loop only."""

    def __init__(
        self,
        *,
        pool: ModelPool,
        engine: Engine,
        requests: OpenRequests,
        events: EventSink,
        clock: Clock,
        encoder: PromptEncoder,
    ) -> None:
        self._intake = Intake(pool, engine, requests, events, clock)
        self._requests = requests
        self._encoder = encoder
        self._memory = MemoryCheck(engine, pool)

    async def pooled(self, request: GenerationRequest) -> PooledTexts:
        """Computes the values of a PooledPrompt. Raises any DomainError; cancelled or failed, it computes no further
        within one engine step, and nothing is held."""
        groups: list[TextGroup] = []

        async def prepare(request: GenerationRequest, answer: Answer) -> None:
            groups.extend(await self._encoder.encode_texts(request, answer.model))
            largest = max(groups, key=lambda group: len(group.prompt) + len(group.rows[0]))
            prompt = EncodedPrompt(largest.prompt).followed_by(largest.rows[0])
            # a pass takes no more than one row behind a second state, or than a chunk of a prompt
            await self._memory.answer_length(replace(request, num_choices=2), prompt, answer.model.description, 0)
            self._submit(request, groups, answer)

        answer = await self._intake.start(request, prepare)
        values: list[list[bytes]] = [[] for _ in groups]
        num_ended = num_computed = 0
        try:
            self._submit_more(request, groups, num_ended, answer)
            async for index, item in answer:
                if (error := failure(item)) is not None:
                    raise error
                if isinstance(item, Pooled):
                    values[index] += item.values
                elif isinstance(item, Finished):
                    num_ended += 1
                    num_computed += item.usage.computed_tokens
                    self._submit_more(request, groups, num_ended, answer)
        finally:
            answer.close()
        num_tokens = sum(group.num_tokens for group in groups)
        placed = {
            place: value
            for group, found in zip(groups, values, strict=True)
            for places, value in zip(group.places, found, strict=True)
            for place in places
        }
        ordered = tuple(placed[place] for place in range(len(placed)))
        return PooledTexts(ordered, num_tokens, max(0, num_tokens - num_computed))

    def _submit_more(
        self, request: GenerationRequest, groups: Sequence[TextGroup], num_ended: int, answer: Answer
    ) -> None:
        """Submits further groups while fewer than MAX_OPEN are open."""
        while answer.num_choices < min(len(groups), num_ended + MAX_OPEN):
            self._requests.reserve(1, is_begun=True)
            try:
                self._submit(request, groups, answer)
            except BaseException:
                self._requests.release(1)
                raise

    def _submit(self, request: GenerationRequest, groups: Sequence[TextGroup], answer: Answer) -> None:
        """Submits the next group."""
        prompt, group, served = request.prompt, groups[answer.num_choices], answer.model
        assert isinstance(prompt, PooledPrompt)
        request = replace(request, id=choice_id(request.id, answer.num_choices))
        submission = Submission(
            id=request.id,
            model=served.source.id,
            prompt=EncodedPrompt(group.prompt).followed_by(group.rows[0][:1]),
            sampling=SamplingParams(),
            seed=0,
            max_new_tokens=0,
            cache_salt=request.cache_salt,
            persist=request.persist,
            priority=request.priority,
            speculates=False,
            pooling=prompt.pooling,
            rows=group.rows,
        )
        choice = Choice(request, 0, submission.num_prompt_tokens, PlainParser(served.tokenizer.detokenizer()))
        self._intake.submit(request, submission, answer, [choice])
