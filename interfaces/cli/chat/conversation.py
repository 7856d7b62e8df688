"""A conversation with a server: the history, and one streamed answer at a time."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from interfaces.cli.client.running_server import NoAnswer, RunningServer

if TYPE_CHECKING:
    from interfaces.http.openai.chat import ChatChunk

Show: TypeAlias = Callable[[str, bool], None]
"""Takes each piece of an answer; True: it is reasoning."""

Message: TypeAlias = dict[str, Any]


@dataclass(slots=True)
class Answer:
    """An answer and its figures, as far as they came. `reused_tokens`: of the prompt, from the prefix cache.
    `first_token_s`: from the question to the first piece; `seconds`: to the end."""

    model: str
    text: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    prompt_tokens: int = 0
    reused_tokens: int = 0
    completion_tokens: int = 0
    first_token_s: float | None = None
    seconds: float = 0.0

    @property
    def tokens_per_s(self) -> float | None:
        """The rate behind the first token; None for less than two."""
        if self.first_token_s is None or self.completion_tokens < 2:
            return None
        return (self.completion_tokens - 1) / max(self.seconds - self.first_token_s, 1e-6)

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "tokens_per_s": self.tokens_per_s}


class Conversation:
    """A conversation. Event loop only. `fields`: of every request, such as `temperature`; what is not among them is the
    model's default. `images`: data URLs that go with the next question, then are part of the history."""

    def __init__(
        self, server: RunningServer, model: str, fields: Mapping[str, object], system: str | None = None
    ) -> None:
        self.server = server
        self.model = model
        self.system = system
        self.history: list[Message] = []
        self.images: list[str] = []
        self._fields = fields

    @property
    def messages(self) -> list[Message]:
        """The system prompt and all turns."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, *self.history]

    async def ask(self, text: str, show: Show) -> Answer:
        """Runs one turn. A turn that fails (NoAnswer) is not kept, so that the next one does not fail too. The received
        part of a cancelled turn is kept."""
        from interfaces.http.openai.chat import ChatChunk

        parts = [{"type": "image_url", "image_url": {"url": url}} for url in self.images]
        self.images = []
        turn: Message = {"role": "user", "content": [*parts, {"type": "text", "text": text}] if parts else text}
        body = {
            **{"model": self.model, "messages": [*self.messages, turn]},
            **{"stream": True, "stream_options": {"include_usage": True}},
            **self._fields,
        }
        answer, has_failed, start_s = Answer(self.model), False, time.monotonic()
        try:
            async for event in self.server.events("/v1/chat/completions", json.dumps(body).encode()):
                chunk = self.server.understood(event, ChatChunk)
                for piece, is_reasoning in _take(answer, chunk):
                    if answer.first_token_s is None:
                        answer.first_token_s = time.monotonic() - start_s
                    show(piece, is_reasoning)
        except NoAnswer:
            has_failed = True
            raise
        finally:
            answer.seconds = time.monotonic() - start_s
            if not has_failed:
                self.history += [turn, {"role": "assistant", "content": answer.text}]
        return answer


def _take(answer: Answer, chunk: "ChatChunk") -> Iterator[tuple[str, bool]]:
    """Adds one chunk to the answer. Yields its pieces."""
    if usage := chunk.usage:
        answer.prompt_tokens, answer.completion_tokens = usage.prompt_tokens, usage.completion_tokens
        answer.reused_tokens = usage.prompt_tokens_details.cached_tokens
    for choice in chunk.choices:
        answer.finish_reason = choice.finish_reason or answer.finish_reason
        if isinstance(reasoning := choice.delta.reasoning_content, str) and reasoning:
            answer.reasoning += reasoning
            yield reasoning, True
        if isinstance(text := choice.delta.content, str) and text:
            answer.text += text
            yield text, False
