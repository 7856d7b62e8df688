"""Stop strings over streamed text, sans-io: decoded text goes in, and text that may be reported comes out.

Text that could still become a stop string is held back, so a stop string never leaks, wherever token boundaries fall.
The split of the input never changes the output.
"""

from dataclasses import dataclass

from domain.output.reader import Stops


@dataclass(frozen=True, slots=True)
class StopStep:
    """A step of matching. `text` may be reported now. `matched`: the stop string that ended the stream; nothing follows
    it."""

    text: str
    matched: str | None = None


class StopText:
    """The matcher of stop strings of one sequence: `feed` takes decoded text, `flush` ends it. Not thread-safe."""

    __slots__ = ("_held", "_stops")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._stops = Stops(stops)
        self._held = ""

    def feed(self, text: str) -> StopStep:
        """Adds text; returns the decided part. The earliest match wins, and the longer one where two start together."""
        self._held += text
        return self._decided(self._stops.undecided_from(self._held, 0))

    def flush(self) -> StopStep:
        """Ends the stream and returns the held text, cut at a complete stop string."""
        return self._decided(None)

    def _decided(self, undecided_from: int | None) -> StopStep:
        """Returns the text before `undecided_from`; all of it at the end of the stream."""
        held, found, is_ended = self._held, self._stops.pattern.search(self._held), undecided_from is None
        end = len(held) if undecided_from is None else undecided_from
        start = found.start() if found is not None else end
        if found is not None and (is_ended or (start <= end and not self._stops.may_grow(held, start))):
            self._held = ""
            return StopStep(held[:start], found[0])
        end = min(start, end)
        self._held = held[end:]
        return StopStep(held[:end])
