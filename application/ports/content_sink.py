"""Where the text of prompts and answers goes, on a server whose operator opted in to having it in traces.

Nowhere else does telemetry see any text: events hold none. A server without that choice has no sink.
"""

from typing import Protocol

from domain.ids import RequestId
from domain.request.request import Prompt
from domain.request.stream import ContentDelta


class ContentSink(Protocol):
    """Event loop only; never blocks, never raises. Ids are those of choices, as events tell them."""

    def asked(self, id: RequestId, prompt: Prompt) -> None:
        """Before RequestQueued is told."""
        ...

    def answered(self, id: RequestId, delta: ContentDelta) -> None:
        """The next piece of its answer. Before RequestEnded is told."""
        ...
