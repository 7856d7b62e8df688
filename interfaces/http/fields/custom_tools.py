"""Custom tools, which take text, as functions of the model's template with one argument, `input`; and back.

The text of a call is read out of its generated arguments, `{"input": "..."}`, piece by piece:

    START --`{"input":"`--> TEXT --`"`--> DONE        an escape inside TEXT waits until it is complete
    START --anything else--> OTHER                    arguments that are no such object are the text, sent at the end
"""

import json
import re

import msgspec

from domain.request.chat import Json, TextGrammar, ToolSpec

_OPENING = re.compile(r'\s{0,16}\{\s{0,16}"input"\s{0,16}:\s{0,16}"')
_LONGEST_OPENING = 80
_PLAIN = re.compile(r'[^"\\]+')
_ESCAPE = re.compile(r"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u(?![dD][89abAB])[0-9a-fA-F]{4}|[^u])", re.S)
_LONGEST_ESCAPE = 12


def custom_spec(name: str, description: str | None, grammar: TextGrammar | None) -> ToolSpec:
    """Returns the function that a custom tool is. Its description has the grammar, which is also enforced where the
    model's form of calls allows it."""
    if grammar is not None and not grammar.definition:
        grammar = None
    text: dict[str, Json] = {"type": "string"}
    if grammar is not None:
        text["description"] = f"Matches this {grammar.syntax} grammar:\n{grammar.definition}"
    parameters: dict[str, Json] = {
        "type": "object",
        "properties": {"input": text},
        "required": ["input"],
        "additionalProperties": False,
    }
    return ToolSpec(name, description or "", parameters, text_grammar=grammar)


def custom_arguments(text: str) -> str:
    """Returns the arguments of the function for the text of a call."""
    return msgspec.json.encode({"input": text}).decode()


def custom_text(arguments: str) -> str:
    """Returns the text of a call whose arguments have ended."""
    reader = CustomInput()
    return reader.feed(arguments) + reader.finish()


class CustomInput:
    """A sans-io reader: `feed` takes the next characters of the arguments and returns the next ones of the text."""

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
        """Returns the rest, once the arguments have ended: all of them if they are not such an object."""
        if self._in_text:
            return self._waiting
        return "" if self._is_done else "".join(self._arguments)

    def _text(self) -> str:
        """The text that is certain so far."""
        text: list[str] = []
        at = 0
        while at < len(self._waiting):
            if plain := _PLAIN.match(self._waiting, at):
                text.append(plain[0])
            elif self._waiting[at] == '"':
                self._in_text, self._is_done = False, True
                break
            else:
                plain = _ESCAPE.match(self._waiting, at)
                if plain is None and len(self._waiting) - at < _LONGEST_ESCAPE:
                    break
                text.append(_unescaped(plain[0]) if plain else self._waiting[at])
            at = plain.end() if plain else at + 1
        self._waiting = "" if self._is_done else self._waiting[at:]
        return "".join(text)


def _unescaped(escape: str) -> str:
    """Returns text in which half of a surrogate pair, which UTF-8 cannot encode, is a question mark."""
    try:
        text = str(json.loads(f'"{escape}"'))
    except ValueError:
        return escape
    return text.encode(errors="replace").decode()
