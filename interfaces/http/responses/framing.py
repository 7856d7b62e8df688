"""A streamed response: numbered events, of which each repeats what its clients may have missed.

    created in_progress+ (output_item.added ... output_item.done)* (completed | incomplete | failed)

`in_progress` is also the sign of life: codex counts every event, and no comment. There is no `[DONE]`.
"""

from collections.abc import Callable
from typing import Any

import msgspec

from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, StreamItem, TextDelta, ToolCallDelta
from interfaces.http.answering import sse
from interfaces.http.answering.collected import opening, shows_nothing
from interfaces.http.responses.answer import AnswerContext, ResponseBody, final_status, piece, usage_body
from interfaces.http.responses.output_items import COMPLETED, Event, OutputItem


class ResponseFraming:
    """A Framing for one choice."""

    def __init__(self, context: AnswerContext, keep: Callable[[ResponseBody], None]) -> None:
        """`keep` is told the whole response, once it is."""
        self._context = context
        self._keep = keep
        self._num_events = 0
        self._open: tuple[ContentDelta, OutputItem] | None = None
        """The part that is being told, and its item."""
        self._output: list[dict[str, Any]] = []
        self._num_reasoning = 0

    def begin(self) -> bytes:
        body = self._context.body("in_progress")
        return self._response("created", body) + self._response("in_progress", body)

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._content(item)
            case Finished():
                return self._finish(item)
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        body = self._context.body("in_progress", self._output)
        return sse.comment(progress.text) + self._response("in_progress", body)

    def end(self) -> bytes:
        return b""

    def fail(self, error: DomainError) -> bytes:
        return self._response("failed", self._context.body("failed", self._output, error=error))

    def _content(self, delta: ContentDelta) -> bytes:
        if isinstance(delta, ReasoningDelta):
            self._num_reasoning += len(delta.token_ids)
        if shows_nothing(delta):
            return b""
        before = b""
        if self._open is None or not self._open[0].merges_with(delta):
            before = self._close(COMPLETED)
            self._open = opening(delta), self._context.item(delta, len(self._output))
            before += self._events(self._open[1].opening())
        return before + self._events(self._open[1].feed(piece(delta)))

    def _close(self, status: str) -> bytes:
        """The item that is open, if one is."""
        if self._open is None:
            return b""
        (_, item), self._open = self._open, None
        closing = self._events(item.closing(status))
        self._output.append(item.body(status))
        return closing

    def _finish(self, finished: Finished) -> bytes:
        status = final_status(finished)
        closing = self._close(status)
        usage = usage_body(finished.usage, self._num_reasoning)
        body = self._context.body(status, self._output, usage)
        self._keep(body)
        return closing + self._response(status, body)

    def _response(self, what: str, body: ResponseBody) -> bytes:
        return self._events([{"type": f"response.{what}", "response": body}])

    def _events(self, events: list[Event]) -> bytes:
        return b"".join(self._event(event) for event in events)

    def _event(self, event: Event) -> bytes:
        numbered = {**event, "sequence_number": self._num_events}
        self._num_events += 1
        return sse.event(msgspec.json.encode(numbered), event["type"])
