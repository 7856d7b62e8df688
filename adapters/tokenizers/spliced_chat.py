"""Renderings of one chat with other ends, of which most is rendered once where the template is local.

What two chats have in common at their beginning a local template (`local_template`) writes alike in both, but for the
last few messages of it. So of the second only its end is rendered, with enough before it, and both ends are laid beside
each other:

    first    whole     |first|......................|near| end |     rendered before
             cut                     |first|~~~~|near| end |         of the same template, without the middle
    second   cut                     |first|~~~~|near| other end |
             whole     |first|......................|near| other end |

The ~ marks what was written next to the gap, which is alike in both that are cut. Whatever does not fit this is
rendered whole: another template, a chat too short to gain by it, a refusal that a whole one may not meet.
"""

from collections.abc import Callable, Sequence
from typing import Any

from adapters.tokenizers.local_template import NUM_FIRST, NUM_NEAR
from adapters.tokenizers.token_prefix import common_text_length

Shaped = dict[str, Any]
Render = Callable[[list[Shaped]], str]

_NUM_KEPT = NUM_FIRST + 2 * NUM_NEAR
"""Read from anywhere; written next to the gap, and read by those that are not."""

_NUM_LEFT_OUT = 16
"""Fewer are not worth two short renderings."""


class SplicedChat:
    """`text_of` gives what `render` would, for chats of one setting: the same tools and arguments. The chat that is
    rendered first is what others are told by; a message is the same as another if it is the same object. One thread."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._whole: list[Shaped] = []
        self._text = ""
        self._cut: dict[int, str | None] = {}

    def text_of(self, chat: list[Shaped]) -> str:
        """Raises what the template does."""
        start = _end_of_gap(_num_shared(self._whole, chat))
        if start is not None and 2 * (NUM_FIRST + len(chat) - start) <= len(chat):
            spliced = self._spliced(chat, start)
            return self._render(chat) if spliced is None else spliced
        text = self._render(chat)
        if not self._whole:
            self._whole, self._text = chat, text
        return text

    def _spliced(self, chat: list[Shaped], start: int) -> str | None:
        if start not in self._cut:
            self._cut[start] = self._without_gap(self._whole, start)
        known = self._cut[start]
        other = None if known is None else self._without_gap(chat, start)
        if known is None or other is None:
            return None
        num_shared = common_text_length(known, other)
        num_replaced = len(known) - num_shared
        if not self._text.endswith(known[num_shared:]):
            return None
        return self._text[: len(self._text) - num_replaced] + other[num_shared:]

    def _without_gap(self, chat: list[Shaped], start: int) -> str | None:
        try:
            return self._render([*chat[:NUM_FIRST], *chat[start:]])
        except Exception:
            return None


def _num_shared(one: Sequence[Shaped], other: Sequence[Shaped]) -> int:
    for at, (first, second) in enumerate(zip(one, other, strict=False)):
        if first is not second:
            return at
    return min(len(one), len(other))


def _end_of_gap(num_shared: int) -> int | None:
    """Where chats that share so many messages go on, if they are cut: an even number of them is left out."""
    num_left_out = (num_shared - _NUM_KEPT) // 2 * 2
    return NUM_FIRST + num_left_out if num_left_out >= _NUM_LEFT_OUT else None


__all__ = ("SplicedChat",)
