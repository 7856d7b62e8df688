"""A submitted prompt: the items of all its choices, from the engine's tokens to what waits for the client.

    engine item ──► pipeline (tokens to content) ──► unread items of the choice ──► Answer, which the client reads

A choice ends for its reader when a stop string completes, when it cannot go on here (its text cannot be made, it is not
read), or when the engine ends it, whichever comes first. The engine is then told, and what it still sends is dropped.
The lease on the model is over when all choices have ended, however long the client takes to read.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

from application.events import Parsing
from application.ports.content_sink import ContentSink
from application.ports.engine import Ended, Engine, EngineItem, Submission, Tokens
from application.services.text_side.answers.output_pipeline import OutputPipeline
from application.services.text_side.models.served_model import ServedModel
from domain.errors import DomainError, ServerUnavailable
from domain.request.request import FinishReason, GenerationRequest, Usage, choice_id
from domain.request.stream import Admitted, ContentDelta, Failed, Finished, PromptLogprobs, StreamItem, ToolCallDelta

MERGE_ABOVE = 32
"""Items waiting for a reader before further ones of the same kind are merged."""

MAX_HELD_BYTES = 16 * 2**20
"""Of one choice's items, estimated: 150,000 tokens of text, or 5,000 with twenty alternatives each."""

_TOKEN_BYTES = 100
_LOGPROB_BYTES = 150


class Choice:
    """One choice: its content as it is made, and what of it is unread, bounded and merged when it piles up. Items that
    pile up are kept as runs, joined once when they are read: adding one costs what is in it, however many wait.

    `usage`: without completion tokens. `outcome`: the last item its reader gets. `latest`: the last item so far.
    `opening`: the first that is content or an end. `admitted`: what its prompt reuses.
    """

    __slots__ = (
        "_held_bytes",
        "_runs",
        "admitted",
        "has_failed",
        "latest",
        "max_held_bytes",
        "opening",
        "outcome",
        "parse_ns",
        "parsed_from_ns",
        "pipeline",
        "usage",
    )

    def __init__(self, pipeline: OutputPipeline, usage: Usage, max_held_bytes: int = MAX_HELD_BYTES) -> None:
        self.pipeline = pipeline
        self.usage = usage
        self.max_held_bytes = max_held_bytes
        self.outcome: Finished | Failed | None = None
        self.latest: StreamItem | None = None
        self.opening: StreamItem | None = None
        self.admitted: Admitted | None = None
        self.parsed_from_ns: int | None = None
        self.parse_ns = 0
        self.has_failed = False
        self._held_bytes = 0
        self._runs: deque[list[StreamItem]] = deque()

    def push(self, item: StreamItem) -> bool:
        """False when that is too much: it is not taken then."""
        size = held_bytes(item)
        if size and self._held_bytes + size > self.max_held_bytes:
            return False
        self._held_bytes += size
        if len(self._runs) > MERGE_ABOVE and self._runs[-1][-1].merges_with(item):
            self._runs[-1].append(item)
        else:
            self._runs.append([item])
        self.latest = item
        if isinstance(item, Admitted):
            self.admitted, self.usage = item, Usage.of(item.explanation, 0)
        elif self.opening is None and (item.is_content or isinstance(item, Finished | Failed)):
            self.opening = item
        return True

    def take(self) -> list[StreamItem]:
        """All that is unread, in order."""
        taken = [_joined(run) for run in self._runs]
        self.clear()
        return taken

    def clear(self) -> None:
        self._runs.clear()
        self._held_bytes = 0

    @property
    def counted(self) -> Usage:
        """With the tokens that the reader was given."""
        return replace(self.usage, completion_tokens=self.pipeline.num_tokens)


class Generation:
    """Event loop only. `close` it in any case, which cancels what still runs. `wake` is set when there is something to
    read."""

    def __init__(
        self,
        request: GenerationRequest,
        submission: Submission,
        *,
        model: ServedModel,
        engine: Engine,
        pipelines: Sequence[OutputPipeline],
        release: Callable[[], None],
        max_held_bytes: int = MAX_HELD_BYTES,
        content: ContentSink | None = None,
    ) -> None:
        """`pipelines`: one a choice. `release`: gives the lease on the model back; called once. `content`: None where
        content is not recorded."""
        self.request = request
        self.prompt_ids = submission.prompt.token_ids
        self.model = model
        self.wake = asyncio.Event()
        self.is_closed = False
        self._engine = engine
        self._release: Callable[[], None] | None = release
        self._content = content
        usage = Usage(len(self.prompt_ids), 0)
        self.choices = tuple(Choice(pipeline, usage, max_held_bytes) for pipeline in pipelines)
        self._num_in_engine = len(self.choices)

    @property
    def is_in_engine(self) -> bool:
        """Whether the engine has not ended all choices yet."""
        return self._num_in_engine > 0

    def receive(self, number: int, item: EngineItem) -> None:
        """Take in what the engine reports of a choice. May raise what its parser raises: see `fail`."""
        choice = self.choices[number]
        if choice.outcome is None and (not self.is_closed or isinstance(item, Ended)):
            self._take_in(number, choice, item)

    def left_engine(self, number: int) -> Finished | Failed | None:
        """The engine is done with a choice, and its last item was received. Returns how it ended."""
        self._num_in_engine -= 1
        return self.choices[number].outcome

    def fail(self, number: int, error: DomainError) -> None:
        """This choice cannot go on here."""
        choice = self.choices[number]
        if choice.outcome is None:
            self._engine.cancel(self.request.id, number)
            self._end(choice, Failed(error, choice.counted))

    def note_parsing(self, number: int, item: EngineItem, from_ns: int, to_ns: int, *, has_failed: bool) -> None:
        """What making content of an item took of the event loop. An end alone is not parsing."""
        choice = self.choices[number]
        if not isinstance(item, Tokens | Ended) or (
            choice.parsed_from_ns is None and isinstance(item, Ended) and not has_failed
        ):
            return
        choice.parsed_from_ns = from_ns if choice.parsed_from_ns is None else choice.parsed_from_ns
        choice.parse_ns += to_ns - from_ns
        choice.has_failed |= has_failed

    def parsing(self, number: int, at_ns: int) -> Parsing | None:
        """How a choice that has ended was parsed; None where there was nothing to parse."""
        choice = self.choices[number]
        if choice.parsed_from_ns is None:
            return None
        problems = choice.outcome.call_problems if isinstance(choice.outcome, Finished) else ()
        return Parsing(
            family=choice.pipeline.family,
            num_calls=choice.pipeline.num_calls,
            problems=tuple(problem.kind.value for problem in problems),
            busy_ns=choice.parse_ns,
            started_ns=choice.parsed_from_ns,
            ended_ns=at_ns,
            has_failed=choice.has_failed,
        )

    def close(self) -> None:
        """Idempotent. Cancels within one engine step what has not ended."""
        if self.is_closed:
            return
        self.is_closed = True
        if any(choice.outcome is None for choice in self.choices):
            self._engine.cancel(self.request.id)
        for choice in self.choices:
            choice.clear()
        self._give_back()

    def _take_in(self, number: int, choice: Choice, item: EngineItem) -> None:
        match item:
            case Ended():
                self._take_end(number, choice, item)
            case Tokens():
                step = choice.pipeline.feed(item)
                for delta in step.deltas:
                    self._record(number, delta)
                    self._push(number, choice, delta)
                if step.stop_text is not None and choice.outcome is None:
                    usage = choice.counted
                    num_tokens = usage.completion_tokens
                    self._engine.cancel(self.request.id, number, reason=FinishReason.STOP, num_tokens=num_tokens)
                    self._end(choice, choice.pipeline.ended(FinishReason.STOP, usage, step.stop_text))
            case _:
                self._push(number, choice, item)

    def _take_end(self, number: int, choice: Choice, item: Ended) -> None:
        if item.error is not None:
            self._end(choice, Failed(item.error.to_error(), item.usage))
        elif item.reason is None or item.reason is FinishReason.CANCELLED or self.is_closed:
            self._end(choice, Finished(item.reason or FinishReason.CANCELLED, item.usage))
        else:
            step = choice.pipeline.finish()
            for delta in step.deltas:
                self._record(number, delta)
                choice.push(delta)
            reason = item.reason if step.stop_text is None else FinishReason.STOP
            self._end(choice, choice.pipeline.ended(reason, item.usage, step.stop_text))

    def _record(self, number: int, delta: ContentDelta) -> None:
        if self._content is not None:
            self._content.answered(choice_id(self.request.id, number), delta)

    def _push(self, number: int, choice: Choice, item: StreamItem) -> None:
        if choice.outcome is not None:
            return
        if choice.push(item):
            self.wake.set()
        else:  # what came before is lost with it: an answer with a gap would be a wrong one
            choice.clear()
            most = choice.max_held_bytes
            self.fail(number, ServerUnavailable(f"more than {most} bytes of the answer were not read"))

    def _end(self, choice: Choice, outcome: Finished | Failed) -> None:
        choice.outcome = outcome
        if not self.is_closed:
            choice.push(outcome)
            self.wake.set()
        if all(choice.outcome is not None for choice in self.choices):
            self._give_back()

    def _give_back(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


def held_bytes(item: StreamItem) -> int:
    """An estimate of the memory an item takes; additive over what is merged. Nothing for those that are few."""
    if isinstance(item, PromptLogprobs):
        return _LOGPROB_BYTES * sum(1 + len(score.top) for score in item.scores if score is not None)
    if not item.is_content:
        return 0
    delta = cast(ContentDelta, item)
    text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
    alternatives = sum(1 + len(logprob.top) for logprob in delta.logprobs)
    return len(text) + _TOKEN_BYTES * len(delta.token_ids) + _LOGPROB_BYTES * alternatives


def _joined(run: Sequence[StreamItem]) -> StreamItem:
    first = run[0]
    if len(run) == 1 or isinstance(first, Admitted | Finished | Failed):  # which never merge
        return first
    return first.merged(cast(Any, run[1:]))
