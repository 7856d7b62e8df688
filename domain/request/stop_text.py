"""Stop strings over streamed text, sans-io: decoded text goes in, and text that may be reported comes out.

Text that could still become a stop string is held back, so a stop string never leaks, wherever token boundaries fall.
The split of the input never changes the output.
"""

from dataclasses import dataclass


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
        self._stops = stops
        self._held = ""

    def feed(self, text: str) -> StopStep:
        """Adds text; returns the decided part. The earliest match wins, and the longer one where two start together."""
        if not self._stops:
            return StopStep(text)
        self._held += text
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        start = self._undecided_from()
        if found:
            at, _, stop = min(found)
            if at < start:  # the match at `start` may become a longer one
                shown, self._held = self._held[:at], ""
                return StopStep(shown, stop)
        shown, self._held = self._held[:start], self._held[start:]
        return StopStep(shown)

    def flush(self) -> StopStep:
        """Ends the stream and returns the held text, cut at a complete stop string."""
        found = [(at, -len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        shown, matched = self._held, None
        if found:
            at, _, matched = min(found)
            shown = self._held[:at]
        self._held = ""
        return StopStep(shown, matched)

    def _undecided_from(self) -> int:
        """Returns the first position from which the held text is a proper prefix of some stop string."""
        longest = max(len(stop) for stop in self._stops)
        for start in range(max(0, len(self._held) - longest + 1), len(self._held)):
            tail = self._held[start:]
            if any(len(tail) < len(stop) and stop.startswith(tail) for stop in self._stops):
                return start
        return len(self._held)
