"""A streamed message: which block is open, and the events that open, continue and close it.

    message_start ping (content_block_start content_block_delta* content_block_stop)* message_delta message_stop

`message_start` waits for the request's admission, because it says what was reused, or for the first sign of life.

Claude Code gives up after 300 s without an event that it counts, and counts neither comments nor `ping`: only deltas of
a block. So a sign of life is an empty delta of the block that is open, or of a text block opened for it; text goes on
in that block, and an empty one that clients send back is dropped.
"""

from typing import Any

import msgspec

from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.priority import Priority
from domain.request.request import Usage
from domain.request.stream import Admitted, ContentDelta, Finished, ReasoningDelta, StreamItem, TextDelta, ToolCallDelta
from interfaces.http.answering import sse
from interfaces.http.answering.collected import opening, shows_nothing
from interfaces.http.anthropic.answer import (
    MessageBody,
    block_body,
    signature,
    stop_reason,
    usage_body,
)
from interfaces.http.anthropic.errors import error_event


class MessageFraming:
    """A Framing for one choice."""

    def __init__(self, id: str, model: str, num_prompt: int, priority: Priority = Priority.INTERACTIVE) -> None:
        self._id = id
        self._model = model
        self._num_prompt = num_prompt
        self._priority = priority
        self._has_started = False
        self._open: ContentDelta | None = None
        """An empty delta of the block that is open."""
        self._index = -1
        self._num_thinking = 0

    def begin(self) -> bytes:
        return b""

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case Admitted(explanation=told):
                return self._start(told.stopped_at)
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._start() + self._content(item)
            case Finished():
                return self._start() + self._close() + self._finish(item)
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        alive = sse.comment(progress.text) + self._start()
        still = self._open or TextDelta("")
        return alive + (b"" if self._open else self._begin_block(still)) + self._delta(still)

    def end(self) -> bytes:
        return _event("message_stop")

    def fail(self, error: DomainError) -> bytes:
        return error_event(error)

    def _start(self, num_reused: int = 0) -> bytes:
        """Once."""
        if self._has_started:
            return b""
        self._has_started = True
        usage = usage_body(Usage(self._num_prompt, 0, {"all": num_reused}), 0, self._priority)
        message = MessageBody(
            id=self._id, model=self._model, content=[], stop_reason=None, stop_sequence=None, usage=usage
        )
        return _event("message_start", message=message) + _event("ping")

    def _content(self, delta: ContentDelta) -> bytes:
        if isinstance(delta, ReasoningDelta):
            self._num_thinking += len(delta.token_ids)
        if shows_nothing(delta):
            return b""
        if self._open is not None and self._open.merges_with(delta):
            return self._delta(delta)
        return self._close() + self._begin_block(delta) + self._delta(delta)

    def _begin_block(self, delta: ContentDelta) -> bytes:
        self._open = opening(delta)
        self._index += 1
        return _event("content_block_start", index=self._index, content_block=block_body(self._open, ""))

    def _delta(self, delta: ContentDelta) -> bytes:
        match delta:
            case TextDelta(text=text):
                body = {"type": "text_delta", "text": text}
            case ReasoningDelta(text=text):
                body = {"type": "thinking_delta", "thinking": text}
            case ToolCallDelta(arguments=arguments):
                body = {"type": "input_json_delta", "partial_json": arguments}
        return _event("content_block_delta", index=self._index, delta=body)

    def _close(self) -> bytes:
        """The block that is open, if one is."""
        closed, self._open = self._open, None
        if closed is None:
            return b""
        events = b""
        if isinstance(closed, ReasoningDelta):
            signed = {"type": "signature_delta", "signature": signature(self._id, self._index)}
            events = _event("content_block_delta", index=self._index, delta=signed)
        return events + _event("content_block_stop", index=self._index)

    def _finish(self, finished: Finished) -> bytes:
        reason = {"stop_reason": stop_reason(finished), "stop_sequence": finished.stop_text}
        return _event("message_delta", delta=reason, usage=usage_body(finished.usage, self._num_thinking))


def _event(type: str, **fields: Any) -> bytes:
    return sse.event(msgspec.json.encode({"type": type, **fields}), type)
