"""What a model's tokens mean: reasoning, text and tool calls, told apart while they are generated.

Sans-io, and owned by one caller; constant time a token on average, whatever a model writes. The deltas, joined, are the
same for any split of one answer's text over tokens. They carry no token ids and no log probabilities: a token may end
what several tokens before it began, or say nothing yet.

Nothing is lost: what looks like a call and is none comes back as text. Once a call has been named, all that the model
writes for it comes as its arguments, whether or not that is valid JSON or ever closed: `domain/output/call_problems`
says what is wrong with a call.
"""

from collections.abc import Sequence
from typing import Protocol

from domain.request.stream import ContentDelta


class OutputParser(Protocol):
    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        """Add a token, as sampled: special ones are marks to a parser. Return what became certain."""
        ...

    def finish(self) -> Sequence[ContentDelta]:
        """End of the answer: return what was held back. Nothing may be fed afterwards."""
        ...
