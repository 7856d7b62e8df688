"""A streamed answer: a JSON object a line. Tool calls are told whole, so each waits for its end.

    piece* (piece with done | error)

The sign of life is an empty piece: clients wait for the next line, whatever is in it.
"""

import msgspec

from application.services.text_side.answers.answer import Progress
from domain.errors import DomainError
from domain.request.stream import ContentDelta, Finished, ReasoningDelta, StreamItem, TextDelta, ToolCallDelta
from interfaces.http.ollama.answer import Answer, Piece, Teller
from interfaces.http.ollama.errors import error_line

MEDIA_TYPE = "application/x-ndjson"


class LineFraming:
    """A Framing for one choice."""

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._first_ns = 0
        self._call: list[ToolCallDelta] = []
        """The pieces of the call that has not ended yet."""

    def begin(self) -> bytes:
        return b""

    def feed(self, index: int, item: StreamItem) -> bytes:
        match item:
            case TextDelta() | ReasoningDelta() | ToolCallDelta():
                return self._content(item)
            case Finished():
                return self._told(self._ended_call()) + _line(self._teller.last(Piece(), item, self._first_ns))
            case _:
                return b""

    def keep_alive(self, progress: Progress) -> bytes:
        return _line(self._teller.piece(Piece()))

    def end(self) -> bytes:
        return b""

    def fail(self, error: DomainError) -> bytes:
        return error_line(error)

    def _content(self, delta: ContentDelta) -> bytes:
        self._first_ns = self._first_ns or self._teller.clock.now_ns()
        if isinstance(delta, ToolCallDelta):
            if self._call and self._call[0].merges_with(delta):
                self._call.append(delta)
                return b""
            ended = self._ended_call()
            self._call = [delta]
            return self._told(ended)
        piece = self._ended_call() if delta.text else Piece()
        piece.add(delta)
        return self._told(piece)

    def _ended_call(self) -> Piece:
        piece = Piece()
        if self._call:
            piece.add(self._call[0].merged(self._call[1:]))
            self._call = []
        return piece

    def _told(self, piece: Piece) -> bytes:
        return b"" if piece.is_empty else _line(self._teller.piece(piece))


def _line(answer: Answer) -> bytes:
    return msgspec.json.encode(answer) + b"\n"
