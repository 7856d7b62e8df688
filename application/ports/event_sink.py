"""The sinks of telemetry: typed events, which hold no text, and the text itself where the operator opted in."""

from typing import Protocol

from application.events import Event
from domain.ids import RequestId
from domain.request.request import Prompt
from domain.request.stream import ContentDelta


class EventSink(Protocol):
    """Called from the compute thread, workers and the event loop alike: thread-safe, never blocks, never raises."""

    def emit(self, event: Event) -> None: ...


class ContentSink(Protocol):
    """The text of prompts and answers, for traces. A server whose operator did not choose that has no such sink.

    Event loop only; never blocks, never raises. Ids are those of choices, as in events.
    """

    def asked(self, id: RequestId, prompt: Prompt) -> None:
        """Called before RequestQueued is emitted."""
        ...

    def answered(self, id: RequestId, delta: ContentDelta) -> None:
        """The next piece of the answer. Called before RequestEnded is emitted."""
        ...
