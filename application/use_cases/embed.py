"""Vectors and scores of texts: find the model, encode and group the texts, check, submit the groups, collect.

A group is a prompt and the rows that end it (`text_groups`), submitted like a choice of a generation.
"""

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from application.ports.clock import Clock
from application.ports.engine import Engine, Submission
from application.services.text_side.answers.answer import Answer, failure
from application.services.text_side.answers.choice import Choice, PlainParser
from application.services.text_side.answers.memory_check import MemoryCheck
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_encoder import VALUE_CHARS, PromptEncoder
from application.services.text_side.answers.text_groups import TextGroup, encode_texts
from application.services.text_side.models.model_pool import ModelPool
from domain.models.capability import Pooling
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
    kept, or are the beginning or the whole of another of its texts. Monotonic times: `submitted_ns` when the texts were
    ready for the model, `ended_ns`."""

    values: tuple[bytes, ...]
    num_tokens: int
    num_cached: int
    submitted_ns: int = 0
    ended_ns: int = 0


class Embed:
    """Event loop only."""

    def __init__(
        self, *, pool: ModelPool, engine: Engine, requests: OpenRequests, encoder: PromptEncoder, clock: Clock
    ) -> None:
        self._clock = clock
        self._pool = pool
        self._engine = engine
        self._requests = requests
        self._encoder = encoder
        self._memory = MemoryCheck(engine, pool)

    async def pooled(self, request: GenerationRequest) -> PooledTexts:
        """Computes the values of a PooledPrompt. Raises any DomainError; cancelled or failed, it computes no further
        within one engine step, and nothing is held."""
        prompt = request.prompt
        assert isinstance(prompt, PooledPrompt)
        with closing(Answer(self._engine, self._pool)) as answer:
            async with self._requests.entering(request, answer) as request:
                asked = (prompt.query or "", prompt.instruction or "", *prompt.texts)
                num_chars, salt = sum(len(text) + VALUE_CHARS for text in asked), request.cache_salt
                made = await self._encoder.run(num_chars, encode_texts, prompt, answer.model, salt)
                pooling, groups, num_tokens = made
                # A pass takes no more than one row behind a second state, or than a chunk of a prompt.
                largest = EncodedPrompt(max((group.prompt.followed_by(group.rows[0]) for group in groups), key=len))
                two = replace(request, num_choices=2)
                longest = max(len(group.rows[0]) for group in groups)
                await self._memory.answer_length(two, largest, answer.model.description, 0, longest)
                self._submit(request, pooling, groups, answer)
            submitted_ns = self._clock.now_ns()
            for _ in groups[1:MAX_OPEN]:
                self._submit(request, pooling, groups, answer)
            values, places, num_computed = dict[int, bytes](), [iter(group.places) for group in groups], 0
            async for index, item in answer:
                if (error := failure(item)) is not None:
                    raise error
                if isinstance(item, Pooled):
                    for value in item.values:
                        values |= dict.fromkeys(next(places[index]), value)
                elif isinstance(item, Finished):
                    num_computed += item.usage.computed_tokens
                    if answer.num_choices < len(groups):
                        self._submit(request, pooling, groups, answer)
        ordered = tuple(values[place] for place in range(len(prompt.texts)))
        num_cached = max(0, num_tokens - num_computed)
        return PooledTexts(ordered, num_tokens, num_cached, submitted_ns, self._clock.now_ns())

    def _submit(
        self, request: GenerationRequest, pooling: Pooling, groups: Sequence[TextGroup], answer: Answer
    ) -> None:
        """Submits the next group. The first one's place in the queue is reserved."""
        group, served = groups[answer.num_choices], answer.model
        request = replace(request, id=choice_id(request.id, answer.num_choices))
        submission = Submission(
            id=request.id,
            model=served.source.id,
            prompt=EncodedPrompt(group.prompt.followed_by(group.rows[0][:1])),
            sampling=SamplingParams(),
            seed=0,
            max_new_tokens=0,
            cache_salt=request.cache_salt,
            persist=request.persist,
            priority=request.priority,
            speculates=False,
            pooling=pooling,
            rows=group.rows,
        )
        choice = Choice(request, 0, submission.num_prompt_tokens, PlainParser(served.tokenizer.detokenizer()))
        self._requests.submit(answer, submission, [choice])
        self._requests.num_waiting += answer.num_choices > 1
