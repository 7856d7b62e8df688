"""Text of foreign origin made safe for a message, a log line or a span: short, printable and on one line.

Text from a client, a file or another program is repeated only through these functions: a long name would bury the
message, and a line break or a terminal's control code could pass for the server's own output.
"""

import re

PRINTABLE_CHARS = 200
"""The default limit: long enough to recognise a name."""

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def printable(text: str, max_chars: int = PRINTABLE_CHARS) -> str:
    """Returns `text` with unprintable characters escaped, cut to `max_chars` characters (the last three are `...`).

    Printable text within the limit is returned unchanged. No more than `max_chars + 1` characters are read.
    """
    head = text[: max_chars + 1]
    if not head.isprintable():
        head = "".join(char if char.isprintable() else _escaped(char) for char in head)
    return head if len(head) <= max_chars else head[: max(0, max_chars - 3)] + "..."


def plain(text: str) -> str:
    """Returns `text` with control characters other than line feed and tab escaped, so that a terminal obeys none of
    them. Keeps no state: streamed text may be passed in pieces."""
    return _CONTROLS.sub(lambda found: _escaped(found[0]), text)


def writable(text: str) -> str:
    """Returns `text` with lone surrogates, which UTF-8 cannot encode (some file names hold them), escaped."""
    return text.encode(errors="backslashreplace").decode()


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
