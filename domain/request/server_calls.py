"""Calls of tools that the server runs itself: the tools, and the end of a call as the model reads it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from domain.request.chat import ChatMessage, Media, Role, message_of
from domain.request.media import Image

MAX_IMAGES_OF_RESULT = 4
"""The images of one result that a model sees; it reads the note of any other."""


@dataclass(frozen=True, slots=True)
class OfferedTool:
    """A tool of a server. `needs_approval`: the client has to allow each call."""

    server: str
    name: str
    needs_approval: bool = True


class CallFault(Enum):
    """The kind of failure of a call. TOOL: the tool says so in its result. PROTOCOL: the server refused the call.
    CONNECTION: the server cannot be reached, or took too long."""

    TOOL = "tool"
    PROTOCOL = "protocol"
    CONNECTION = "connection"


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The end of a call. `text`: the result, or why there is none, `code` with it. `pieces`: the same with images;
    empty for the text alone."""

    text: str
    fault: CallFault | None = None
    code: int = 0
    pieces: Sequence[str | Image] = field(default=(), repr=False)

    def message(self, call_id: str) -> ChatMessage:
        """Returns the result of the call in a conversation."""
        pieces: list[str | Media] = [*(self.pieces or (self.text,))]
        said = message_of(Role.TOOL, pieces, "\n")
        return ChatMessage(
            Role.TOOL, said.content, tool_call_id=call_id, is_error=self.fault is not None, media=said.media
        )


NOT_RUN = CallOutcome("The call was not run.", CallFault.TOOL)
NOT_APPROVED = "The user did not approve this call."
