"""From one choice's tokens to what its client sees: detokenized text up to a stop string.

Pure bookkeeping: `feed` tokens as they arrive, `finish` when the engine has ended the choice. What the engine computed
behind a stop string is never shown and never counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from application.ports.engine import Tokens
from application.ports.tokenizer import Detokenizer
from domain.sampling import StopRules
from domain.stop_text import StopText
from domain.stream import TextDelta, TokenLogprob


@dataclass(frozen=True, slots=True)
class OutputStep:
    """`deltas` to deliver. `stop_text`: the stop string that ends the choice here."""

    deltas: Sequence[TextDelta]
    stop_text: str | None = None


class OutputPipeline:
    """One for each choice. `num_tokens`: those that count so far."""

    __slots__ = ("_detokenizer", "_min_tokens", "_stop", "num_tokens")

    def __init__(self, detokenizer: Detokenizer, rules: StopRules) -> None:
        self._detokenizer = detokenizer
        self._min_tokens = rules.min_tokens
        self._stop = StopText(rules.stop)
        self.num_tokens = 0

    def feed(self, tokens: Tokens) -> OutputStep:
        """Add sampled tokens, up to the one with which a stop string is complete."""
        deltas: list[TextDelta] = []
        last = len(tokens.token_ids) - 1
        for index, token_id in enumerate(tokens.token_ids):
            text, stop_text = self._text(token_id, is_shown=not (tokens.has_eos and index == last))
            deltas.append(TextDelta(text, (token_id,), _at(tokens.logprobs, index)))
            if stop_text is not None:
                return OutputStep(deltas, stop_text)
        return OutputStep(deltas)

    def finish(self) -> OutputStep:
        """Release what was held back; it may still complete a stop string."""
        step = self._stop.feed(self._detokenizer.flush())
        text, stop_text = step.text, step.matched
        if stop_text is None:
            rest = self._stop.flush()
            text, stop_text = text + rest.text, rest.matched
        return OutputStep([TextDelta(text)] if text else [], stop_text)

    def _text(self, token_id: int, *, is_shown: bool) -> tuple[str, str | None]:
        self.num_tokens += 1
        text = self._detokenizer.feed(token_id) if is_shown else ""
        if self.num_tokens < self._min_tokens or not is_shown:
            return text, None
        step = self._stop.feed(text)
        return step.text, step.matched


def _at(logprobs: Sequence[TokenLogprob], index: int) -> tuple[TokenLogprob, ...]:
    return (logprobs[index],) if index < len(logprobs) else ()


__all__ = ("OutputPipeline", "OutputStep")
