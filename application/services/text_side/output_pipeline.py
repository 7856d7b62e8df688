"""From one sequence's tokens to what its client sees: detokenized text, stop strings, the reason it ended.

Pure bookkeeping on the compute thread: `feed` a token, get a delta and perhaps an end. The end-of-sequence token is
counted and reported as a token, but never shown as text.
"""

from dataclasses import dataclass

from application.ports.tokenizer import Detokenizer
from domain.request import FinishReason
from domain.sampling import StopRules
from domain.stop_text import StopText
from domain.stream import TextDelta, TokenLogprob


@dataclass(frozen=True, slots=True)
class OutputStep:
    """`delta` to deliver; `reason` is set when the sequence ends here."""

    delta: TextDelta
    reason: FinishReason | None = None
    stop_text: str | None = None


class OutputPipeline:
    """One per sequence. `max_new_tokens` is already bounded by the context."""

    __slots__ = ("_detokenizer", "_eos", "_max_new_tokens", "_num_tokens", "_rules", "_stop")

    def __init__(self, detokenizer: Detokenizer, eos: frozenset[int], rules: StopRules, max_new_tokens: int) -> None:
        self._detokenizer = detokenizer
        self._eos = eos
        self._rules = rules
        self._stop = StopText(rules.stop)
        self._max_new_tokens = max_new_tokens
        self._num_tokens = 0

    def feed(self, token_id: int, logprob: TokenLogprob | None = None) -> OutputStep:
        """Add one sampled token."""
        self._num_tokens += 1
        logprobs = () if logprob is None else (logprob,)
        if token_id in self._eos and not self._rules.ignore_eos and self._num_tokens >= self._rules.min_tokens:
            return self._end("", token_id, logprobs, FinishReason.STOP)
        text = self._detokenizer.feed(token_id)
        if self._num_tokens < self._rules.min_tokens:
            return OutputStep(TextDelta(text, (token_id,), logprobs))
        step = self._stop.feed(text)
        if step.matched is not None:
            return OutputStep(TextDelta(step.text, (token_id,), logprobs), FinishReason.STOP, step.matched)
        if self._num_tokens >= self._max_new_tokens:
            return self._end(step.text, token_id, logprobs, FinishReason.LENGTH)
        return OutputStep(TextDelta(step.text, (token_id,), logprobs))

    def _end(self, text: str, token_id: int, logprobs: tuple[TokenLogprob, ...], reason: FinishReason) -> OutputStep:
        """Release what was held back; it may still complete a stop string."""
        last = self._stop.feed(self._detokenizer.flush())
        if last.matched is None:
            rest = self._stop.flush()
            last = type(last)(last.text + rest.text, rest.matched)
        if last.matched is not None:
            reason = FinishReason.STOP
        return OutputStep(TextDelta(text + last.text, (token_id,), logprobs), reason, last.matched)


__all__ = ("OutputPipeline", "OutputStep")
