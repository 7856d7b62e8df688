"""The text inside a custom tool's arguments, as it is generated: `{"input": "..."}` piece by piece.

START --`{"input":"`--> TEXT --`"`--> DONE        an escape inside TEXT waits until it is complete
START --anything else--> OTHER                    what is no such object is the text itself, told at the end
"""

import json
import re

_OPENING = re.compile(r'\s{0,16}\{\s{0,16}"input"\s{0,16}:\s{0,16}"')
_LONGEST_OPENING = 80
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u(?![dD][89abAB])[0-9a-fA-F]{4}|[^u])", re.S)
_LONGEST_ESCAPE = 12


class CustomInput:
    """`feed` the next characters of the arguments; it returns the next ones of the text."""

    def __init__(self) -> None:
        self._arguments: list[str] = []
        self._waiting = ""
        self._in_text = False
        self._is_done = False

    def feed(self, arguments: str) -> str:
        self._arguments.append(arguments)
        if not self._in_text and (self._is_done or len(self._waiting) > _LONGEST_OPENING):
            return ""
        self._waiting += arguments
        if not self._in_text and (opening := _OPENING.match(self._waiting)):
            self._waiting = self._waiting[opening.end() :]
            self._in_text = True
        return self._text() if self._in_text else ""

    def finish(self) -> str:
        """The rest, once the arguments have ended: all of them where they are no such object."""
        if self._in_text:
            return self._waiting
        return "" if self._is_done else "".join(self._arguments)

    def _text(self) -> str:
        """What is certain of the text so far."""
        told: list[str] = []
        at = 0
        while at < len(self._waiting):
            if plain := _PLAIN.match(self._waiting, at):
                told.append(plain[0])
            elif self._waiting[at] == '"':
                self._in_text, self._is_done = False, True
                break
            else:
                plain = _ESCAPE.match(self._waiting, at)
                if plain is None and len(self._waiting) - at < _LONGEST_ESCAPE:
                    break
                told.append(_unescaped(plain[0]) if plain else self._waiting[at])
            at = plain.end() if plain else at + 1
        self._waiting = "" if self._is_done else self._waiting[at:]
        return "".join(told)


def _unescaped(escape: str) -> str:
    """Half of a surrogate pair, which no encoding has, becomes a question mark."""
    try:
        text = str(json.loads(f'"{escape}"'))
    except ValueError:
        return escape
    return text.encode(errors="replace").decode()
