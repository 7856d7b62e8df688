"""Text that somebody else chose, as it may stand in a message, a log line or a span: short, and on one line.

Nothing a client sends is repeated without this: a name of two megabytes is no message, and a line break or a terminal's
control codes in one must not pass for something the server said.
"""

import re

SHOWN_CHARS = 200
"""Enough to recognise a name by."""


_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def shown(text: str, max_chars: int = SHOWN_CHARS) -> str:
    """`text` with what is not plainly visible escaped, cut to at most `max_chars` characters with `...` at the end.

    Plain text within the limit comes back as it is. Reads no more of a long text than it shows.
    """
    head = text[: max_chars + 1]
    if not head.isprintable():
        head = "".join(char if char.isprintable() else _escaped(char) for char in head)
    return head if len(head) <= max_chars else head[: max(0, max_chars - 3)] + "..."


def plain(text: str) -> str:
    """`text` whose lines and tabs stay as they are, and other control characters are escaped: none reaches a terminal
    as a command to it. May be given piece by piece."""
    return _CONTROLS.sub(lambda found: _escaped(found[0]), text)


def writable(text: str) -> str:
    """`text` with what no UTF-8 has (half a character, as in some file names) spelled out."""
    return text.encode(errors="backslashreplace").decode()


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
