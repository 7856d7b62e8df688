"""One choice of an answer: the engine's tokens become content, which waits here until the client's reader takes it.

    engine item ──► parser ──► stop strings ──► unread items, bounded and merged ──► Answer, which the client reads

A choice ends for its reader when a stop string completes, when it cannot continue here (its text cannot be made, or it
is not read), or when the engine ends it, whichever comes first. What the engine reports after that is neither shown nor
counted.

A choice also ends when it repeats itself, if that is to be detected. Then it ends as if its length were reached. Tool
calls may repeat what they like: a pattern never reaches into one, and an answer with a grammar is not looked at.

Stop strings are matched in text only: not in reasoning or arguments, and not across them. The content, joined, is the
same however the engine batches tokens. Every token is in one delta: the first that it produced or, if it produced none,
an empty one of the kind that is in progress.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from application.events import Parsing
from application.ports.engine import Ended, EngineItem, ImageWanted, Tokens
from application.ports.event_sink import ContentSink
from application.ports.tokenizer import Detokenizer, OutputParser
from application.services.text_side.answers.generated_calls import GeneratedCalls
from domain.errors import DomainError, ServerUnavailable
from domain.output.reader import StopStep, StopText
from domain.output.schema_check import call_problems, joined_calls
from domain.output.text_parser import TextParser
from domain.request.chat import GeneratedCall
from domain.request.repetition import Repetition, RepetitionDetector
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest, Usage, choice_id
from domain.request.stream import (
    Admitted,
    ContentDelta,
    Failed,
    Finished,
    Pooled,
    PromptLogprobs,
    ReasoningDelta,
    ServerCallItem,
    StreamItem,
    TextDelta,
    TokenLogprob,
    ToolCallDelta,
)

MERGE_ABOVE = 32
"""Items that wait for a reader before further ones of the same kind are merged."""

MAX_HELD_BYTES = 16 * 2**20
"""The bound on the unread items of one choice, estimated: 150,000 tokens of text, or 5,000 with twenty alternatives
each."""

_TOKEN_BYTES = 100
_LOGPROB_BYTES = 150


class PlainParser:
    """A parser that yields text only: for the completion of a raw prompt."""

    def __init__(self, detokenizer: Detokenizer) -> None:
        self._detokenizer = detokenizer

    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        return (TextDelta(self._detokenizer.feed(token_id)),)

    def finish(self) -> Sequence[ContentDelta]:
        return (TextDelta(self._detokenizer.flush()),)


class TokenParser:
    """A parser of chat answers. `mark_of`: the special tokens that mark reasoning or calls, as the text parser writes
    them; other special tokens yield nothing."""

    def __init__(self, detokenizer: Detokenizer, parser: TextParser, mark_of: Mapping[int, str]) -> None:
        self._detokenizer = detokenizer
        self._parser = parser
        self._mark_of = mark_of

    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        mark = self._mark_of.get(token_id)
        text = self._detokenizer.feed(token_id) if mark is None else self._detokenizer.flush() + mark
        return self._parser.feed(text) if text else ()

    def finish(self) -> Sequence[ContentDelta]:
        return (*self._parser.feed(self._detokenizer.flush()), *self._parser.finish())


class Choice:
    """Event loop only. Items that pile up are kept as runs, which are joined once when they are read: adding an item
    costs time linear in its own size, however many wait.

    `id`: its own, as events name it. `outcome`: the last item that its reader gets. `latest`: the newest item.
    `opening`: the first item that is content or an end. `admitted`: what its prompt reuses. `num_prompt`: tokens of its
    prompt. `num_tokens`: output tokens that count so far. `is_in_engine`: False once the engine has ended it.
    """

    def __init__(
        self,
        request: GenerationRequest,
        number: int,
        num_prompt: int,
        parser: OutputParser,
        family: str = "",
        content: ContentSink | None = None,
        num_image_tokens: int = 0,
        kept: GeneratedCalls | None = None,
    ) -> None:
        """`family`: the parser's model family, empty for plain text. `content`: None where content is not recorded.
        `num_image_tokens`: those of `num_prompt` that are images. `kept`: takes each call once something follows it or
        the answer ends."""
        self.request, self.number, self.id = request, number, choice_id(request.id, number)
        self.outcome: Finished | Failed | None = None
        self.latest: StreamItem | None = None
        self.opening: StreamItem | None = None
        self.admitted: Admitted | None = None
        self.num_prompt, self.num_tokens = num_prompt, 0
        self.is_in_engine = True
        self._num_image_tokens = num_image_tokens
        self._usage = Usage(num_prompt, 0)
        self._proposed, self._accepted = Counter[str](), Counter[str]()
        self._parser, self._family, self._content = parser, family, content
        self._stop = StopText(request.stop.stop)
        rule = request.stop.repetition
        is_looked_for = rule is not None and rule.is_on and request.grammar is None
        self._detector = RepetitionDetector(rule) if rule is not None and is_looked_for else None
        self._repetition: Repetition | None = None
        self._calls: list[ToolCallDelta] = []
        self._kept, self._num_kept, self._reasoning = kept, 0, list[str]()
        self._in_progress: ContentDelta = TextDelta("")
        self._parsed_from_ns: int | None = None
        self._parse_ns = 0
        self._has_failed = self._is_closed = False
        self._runs: deque[list[StreamItem]] = deque()
        self._held_bytes = 0

    def receive(self, item: EngineItem) -> None:
        """Adds the engine's next report. Raises what the parser raises: see `fail`."""
        if self.outcome is not None:
            return
        if isinstance(item, Ended):
            self._receive_end(item)
        elif self._is_closed or isinstance(item, ImageWanted):
            return
        elif isinstance(item, Tokens):
            self._receive_tokens(item)
        else:
            self._add(item)

    def fail(self, error: DomainError) -> None:
        """Ends the choice with an error, unless it has ended."""
        if self.outcome is None:
            self._end(Failed(error, self._counted))

    def take(self) -> list[StreamItem]:
        """Returns all unread items, in order."""
        taken = [_joined(run) for run in self._runs]
        self._clear()
        return taken

    def close(self) -> None:
        """Drops unread items, now and later: the reader has left."""
        self._is_closed = True
        self._clear()

    def note_parsing(self, item: EngineItem, from_ns: int, to_ns: int, *, has_failed: bool) -> None:
        """Counts the event loop's time for an item. An end without tokens before it is not parsing."""
        if isinstance(item, Tokens) or (isinstance(item, Ended) and (has_failed or self._parsed_from_ns is not None)):
            self._parsed_from_ns = from_ns if self._parsed_from_ns is None else self._parsed_from_ns
            self._parse_ns += to_ns - from_ns
            self._has_failed |= has_failed

    def parsing(self, at_ns: int) -> Parsing | None:
        """Returns how an ended choice was parsed; None where there was nothing to parse."""
        if self._parsed_from_ns is None:
            return None
        finished = self.outcome if isinstance(self.outcome, Finished) else None
        problems = finished.call_problems if finished is not None else ()
        repetition = finished.repetition if finished is not None else None
        return Parsing(
            family=self._family,
            num_calls=len({call.index for call in self._calls}),
            problems=tuple(problem.kind.value for problem in problems),
            busy_ns=self._parse_ns,
            started_ns=self._parsed_from_ns,
            ended_ns=at_ns,
            has_failed=self._has_failed,
            repeated_tokens=0 if repetition is None else repetition.pattern_size,
        )

    # ---- from tokens to content --------------------------------------------------------------------------------

    def _receive_tokens(self, tokens: Tokens) -> None:
        last, drafter = len(tokens.token_ids) - 1, tokens.drafter
        if drafter is not None:
            self._proposed[drafter.value] += tokens.num_proposed
        for index, token_id in enumerate(tokens.token_ids):
            self.num_tokens += 1
            if drafter is not None and index:
                self._accepted[drafter.value] += 1
            ends_answer = tokens.has_eos and index == last
            parsed = () if ends_answer else self._parser.feed(token_id)
            deltas, stop_text = self._up_to_stop(parsed)
            first, *others = deltas or (self._in_progress,)
            logprobs = tokens.logprobs[index : index + 1]
            self._add(replace(first, token_ids=(token_id,), logprobs=logprobs), *others)
            if stop_text is not None:
                self._finish(FinishReason.STOP, self._counted, stop_text)
            elif self._detector is not None and not ends_answer and self.outcome is None:
                self._detect(self._detector, token_id, parsed)
            if self.outcome is not None:
                return

    def _detect(self, detector: RepetitionDetector, token_id: int, parsed: Sequence[ContentDelta]) -> None:
        """Ends the choice if it repeats itself with this token. A token that yields nothing may belong to a call whose
        beginning is held back, so it ends nothing."""
        if any(isinstance(delta, ToolCallDelta) for delta in parsed):
            detector.restart()
            return
        found = detector.accept(token_id)
        is_shown = any(not isinstance(delta, ToolCallDelta) and delta.text for delta in parsed)
        if found is not None and is_shown and self.num_tokens >= self.request.stop.min_tokens:
            self._repetition = found
            self._receive_end(Ended(self._counted, FinishReason.LENGTH))

    def _receive_end(self, ended: Ended) -> None:
        if ended.error is not None:
            self._end(Failed(ended.error.to_error(), self._drafted(ended.usage)))
        elif ended.reason is None or ended.reason is FinishReason.CANCELLED or self._is_closed:
            self._end(Finished(ended.reason or FinishReason.CANCELLED, self._drafted(ended.usage)))
        else:
            deltas, stop_text = self._up_to_stop(self._parser.finish())
            self._call_ends()
            if stop_text is None:  # text that was held back may still complete a stop string
                rest = self._stop.flush()
                deltas += _shown(rest)
                stop_text = rest.matched
            self._add(*deltas)
            reason = ended.reason if stop_text is None else FinishReason.STOP
            self._finish(reason, self._drafted(ended.usage), stop_text)

    def _finish(self, reason: FinishReason, usage: Usage, stop_text: str | None) -> None:
        if self.outcome is not None:
            return
        calls, prompt = joined_calls(self._calls), self.request.prompt
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        tools = prompt.tools if isinstance(prompt, ChatPrompt) else ()
        repetition = self._repetition if reason is FinishReason.LENGTH else None
        self._end(Finished(reason, usage, stop_text, call_problems(calls, tools), repetition))

    def _up_to_stop(self, deltas: Iterable[ContentDelta]) -> tuple[list[ContentDelta], str | None]:
        """Returns the deltas that may be reported now, and the stop string that ends the choice after them."""
        shown: list[ContentDelta] = []
        for delta in deltas:
            step = self._matched(delta.text) if isinstance(delta, TextDelta) else self._stop.flush()
            shown += _shown(step)
            if step.matched is not None:
                return shown, step.matched
            self._in_progress = _empty(delta)
            if not isinstance(delta, TextDelta):
                shown.append(delta)
            if not isinstance(delta, ToolCallDelta) or delta.id:
                self._call_ends()
            if isinstance(delta, ToolCallDelta):
                self._calls.append(delta)
            elif isinstance(delta, ReasoningDelta):
                self._reasoning.append(delta.text)
        return shown, None

    def _call_ends(self) -> None:
        deltas, self._num_kept = self._calls[self._num_kept :], len(self._calls)
        for call in joined_calls(deltas):
            if self._kept is not None:
                generated = GeneratedCall(call.name, call.arguments, "".join(self._reasoning), deltas[0].is_own_id)
                self._kept.keep(self.request, call.id, generated)
            self._reasoning.clear()

    def _matched(self, text: str) -> StopStep:
        return StopStep(text) if self.num_tokens < self.request.stop.min_tokens else self._stop.feed(text)

    # ---- unread items ------------------------------------------------------------------------------------------

    @property
    def _counted(self) -> Usage:
        return self._drafted(replace(self._usage, completion_tokens=self.num_tokens))

    def _drafted(self, usage: Usage) -> Usage:
        """Returns the usage with the drafted tokens, which are counted here: an engine that is lost forgets them; and
        with those of images, which are counted where they are encoded."""
        proposed, accepted = dict(self._proposed), dict(self._accepted)
        return replace(usage, proposed=proposed, accepted=accepted, image_tokens=self._num_image_tokens)

    def _add(self, *items: StreamItem) -> None:
        """Keeps items for the reader; too many bytes fail the choice, because an answer with a gap would be wrong."""
        for item in items:
            if self.outcome is not None:
                return
            if self._content is not None and isinstance(item, ContentDelta):
                self._content.answered(self.id, item)
            size = _held_bytes(item)
            if size and self._held_bytes + size > MAX_HELD_BYTES:
                self._clear()
                self.fail(ServerUnavailable(f"more than {MAX_HELD_BYTES} bytes of the answer were not read"))
                return
            self._held_bytes += size
            self._keep(item)

    def _end(self, outcome: Finished | Failed) -> None:
        self.outcome = outcome
        if not self._is_closed:
            self._keep(outcome)

    def _keep(self, item: StreamItem) -> None:
        if len(self._runs) > MERGE_ABOVE and self._runs[-1][-1].merges_with(item):
            self._runs[-1].append(item)
        else:
            self._runs.append([item])
        self.latest = item
        if isinstance(item, Admitted):
            self.admitted, self._usage = item, Usage.of(item.explanation, 0)
        elif self.opening is None and (item.is_content or isinstance(item, Finished | Failed)):
            self.opening = item

    def _clear(self) -> None:
        self._runs.clear()
        self._held_bytes = 0


def _held_bytes(item: StreamItem) -> int:
    """An estimate of the memory of an item; additive over merged ones, and 0 for kinds that are few."""
    if isinstance(item, PromptLogprobs):
        return _scored_bytes(item.scores)
    if not isinstance(item, ContentDelta):
        return 0
    text = item.arguments if isinstance(item, ToolCallDelta) else item.text
    return len(text) + _TOKEN_BYTES * len(item.token_ids) + _scored_bytes(item.logprobs)


def _scored_bytes(scores: Iterable[TokenLogprob | None]) -> int:
    return _LOGPROB_BYTES * sum(1 + len(score.top) for score in scores if score is not None)


def _joined(run: Sequence[StreamItem]) -> StreamItem:
    first = run[0]
    if len(run) == 1 or isinstance(first, Admitted | Pooled | ServerCallItem | Finished | Failed):  # which never merge
        return first
    return first.merged(cast(Any, run[1:]))


def _shown(step: StopStep) -> list[ContentDelta]:
    return [TextDelta(step.text)] if step.text else []


def _empty(delta: ContentDelta) -> ContentDelta:
    return ToolCallDelta(delta.index) if isinstance(delta, ToolCallDelta) else type(delta)("")
