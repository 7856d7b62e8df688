"""From one choice's tokens to what its client sees: parsed content, and text only up to a stop string.

Pure bookkeeping: `feed` tokens as they arrive, `finish` when the engine has ended the choice, `ended` for how it ended.
Stop strings are looked for in text, never in reasoning or arguments, and never across them. What the engine computed
behind a stop string is never shown and never counted. The content, joined, is the same however tokens are told.

Every token is in one delta: the first that came of it or, if none did, an empty one of the kind that is under way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from application.ports.engine import Tokens
from application.ports.tokenizer import OutputParser
from domain.output.call_problems import call_problems, joined_calls
from domain.request.chat import ToolSpec
from domain.request.request import FinishReason, Usage
from domain.request.sampling import StopRules
from domain.request.stop_text import StopStep, StopText
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, TextDelta, TokenLogprob, ToolCallDelta


@dataclass(frozen=True, slots=True)
class OutputStep:
    """`deltas` to deliver. `stop_text`: the stop string that ends the choice here."""

    deltas: Sequence[ContentDelta]
    stop_text: str | None = None


class OutputPipeline:
    """One for each choice. `tools`: those the answer may call. `family`: of the parser, empty where all is text.
    `num_tokens`: those that count so far."""

    __slots__ = ("_calls", "_min_tokens", "_parser", "_stop", "_tools", "_under_way", "family", "num_tokens")

    def __init__(
        self, parser: OutputParser, rules: StopRules, tools: Sequence[ToolSpec] = (), family: str = ""
    ) -> None:
        self.family = family
        self._parser = parser
        self._min_tokens = rules.min_tokens
        self._stop = StopText(rules.stop)
        self._tools = tools
        self._calls: list[ToolCallDelta] = []
        self._under_way: ContentDelta = TextDelta("")
        self.num_tokens = 0

    @property
    def num_calls(self) -> int:
        """Tool calls begun so far."""
        return len({call.index for call in self._calls})

    def feed(self, tokens: Tokens) -> OutputStep:
        """Add sampled tokens, up to the one with which a stop string is complete."""
        deltas: list[ContentDelta] = []
        last = len(tokens.token_ids) - 1
        for index, token_id in enumerate(tokens.token_ids):
            self.num_tokens += 1
            ends_answer = tokens.has_eos and index == last
            step = self._up_to_stop(() if ends_answer else self._parser.feed(token_id))
            first, *others = step.deltas or (self._under_way,)
            deltas += (replace(first, token_ids=(token_id,), logprobs=_at(tokens.logprobs, index)), *others)
            if step.stop_text is not None:
                return OutputStep(deltas, step.stop_text)
        return OutputStep(deltas)

    def finish(self) -> OutputStep:
        """Release what was held back; it may still complete a stop string."""
        step = self._up_to_stop(self._parser.finish())
        if step.stop_text is not None:
            return step
        rest = self._stop.flush()
        return OutputStep([*step.deltas, *_shown(rest)], rest.matched)

    def ended(self, reason: FinishReason, usage: Usage, stop_text: str | None = None) -> Finished:
        """What its reader is told, once all content is out."""
        calls = joined_calls(self._calls)
        if calls and reason is FinishReason.STOP:
            reason = FinishReason.TOOL_CALLS
        return Finished(reason, usage, stop_text, call_problems(calls, self._tools))

    def _up_to_stop(self, deltas: Iterable[ContentDelta]) -> OutputStep:
        shown: list[ContentDelta] = []
        for delta in deltas:
            step = self._looked_through(delta.text) if isinstance(delta, TextDelta) else self._stop.flush()
            shown += _shown(step)
            if step.matched is not None:
                return OutputStep(shown, step.matched)
            self._under_way = _empty(delta)
            if not isinstance(delta, TextDelta):
                shown.append(delta)
            if isinstance(delta, ToolCallDelta):
                self._calls.append(delta)
        return OutputStep(shown)

    def _looked_through(self, text: str) -> StopStep:
        return StopStep(text) if self.num_tokens < self._min_tokens else self._stop.feed(text)


def _shown(step: StopStep) -> list[ContentDelta]:
    return [TextDelta(step.text)] if step.text else []


def _empty(delta: ContentDelta) -> ContentDelta:
    match delta:
        case ToolCallDelta(index=index):
            return ToolCallDelta(index)
        case ReasoningDelta():
            return ReasoningDelta("")
        case TextDelta():
            return TextDelta("")


def _at(logprobs: Sequence[TokenLogprob], index: int) -> tuple[TokenLogprob, ...]:
    return (logprobs[index],) if index < len(logprobs) else ()
