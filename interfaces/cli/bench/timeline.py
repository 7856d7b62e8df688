"""One streamed answer as its client saw it: when each piece of text came, and what the server said of tokens.

Sans-io: whoever reads the stream feeds its lines in. Times are of one monotonic clock, in seconds.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from domain.shown import shown
from interfaces.cli.client.foreign_answer import decoded

DONE = b"[DONE]"
MAX_ERROR_CHARS = 500

MIN_SPAN_S = 0.005
"""Whoever reads a stream late finds many chunks at once: what came within less tells of the reader."""

_TEXTS = ("content", "reasoning_content", "reasoning", "text")


@dataclass
class Timeline:
    """`token_s`: arrival of each chunk that holds text; `usage` and `headers` as the server gave them. `error`: why
    there is no whole answer, `left` for a client that went away; empty when there is one."""

    sent_s: float
    status: int = 0
    first_token_s: float = 0.0
    end_s: float = 0.0
    token_s: list[float] = field(default_factory=list[float])
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Between chunks: inter-token latencies where a chunk is a token."""
        return [later - earlier for earlier, later in zip(self.token_s, self.token_s[1:], strict=False)]

    @property
    def longest_gap_s(self) -> float:
        return max(self.gaps_s, default=0.0)

    @property
    def num_prompt(self) -> int | None:
        """Tokens, as the server counted them; None if it did not tell."""
        return _count(self.usage.get("prompt_tokens"))

    @property
    def num_output(self) -> int | None:
        """Tokens, as the server counted them; None if it did not tell."""
        return _count(self.usage.get("completion_tokens"))

    @property
    def num_cached(self) -> int | None:
        """Prompt tokens that the server says it reused; None if it did not tell, which is not zero."""
        details = self.usage.get("prompt_tokens_details")
        return _count(cast("dict[str, object]", details).get("cached_tokens")) if isinstance(details, dict) else None

    def read_line(self, line: bytes, now_s: float) -> None:
        """Take a line of the stream. Raises ValueError for data that is not JSON."""
        if line.startswith(b"data:"):
            self._take(line[5:].strip(), now_s)

    def _take(self, data: bytes, now_s: float) -> None:
        if not data or data == DONE:
            return
        chunk: Any = decoded(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"an event is not an object: {data[:80]!r}")
        event = cast("dict[str, Any]", chunk)
        if event.get("error"):
            self.error = shown(json.dumps(event["error"]), MAX_ERROR_CHARS)
            return
        if isinstance(usage := event.get("usage"), dict):
            self.usage = cast("dict[str, Any]", usage)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice
            if text := "".join(delta.get(name) or "" for name in _TEXTS):
                self.first_token_s = self.first_token_s or now_s
                self.token_s.append(now_s)
                self.text += text


def decode_rate(timelines: Sequence[Timeline]) -> float | None:
    """Tokens a second over all streams while all of them run: from the last first token to the first end. A chunk may
    hold two tokens: where the server tells how many there were, they count evenly. None: they hardly overlap, or
    came in one burst."""
    start = max(timeline.first_token_s for timeline in timelines)
    end = min(timeline.token_s[-1] for timeline in timelines)
    within = [sum(start < at <= end for at in timeline.token_s) for timeline in timelines]
    if min(within) < 2 or end - start < MIN_SPAN_S:
        return None
    tokens = 0.0
    for timeline, count in zip(timelines, within, strict=True):
        tokens += count * (timeline.num_output or len(timeline.token_s)) / len(timeline.token_s)
    return tokens / (end - start)


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
