"""A tool's own grammar (Lark or a regular expression) of the one text that it takes, as one regular expression.

The rules of a Lark grammar are inserted where they are used, so a rule may not refer to itself. Not supported, beside
that: directives, special tokens, `&` and `~`, anchors and look-around. A text with such a grammar is free: the model
was shown the grammar.
"""

import json
import re
from collections.abc import Iterator, Mapping

from domain.call_grammar.strings import rust_regex
from domain.request.chat import ToolSpec
from domain.request.grammar import literal

MAX_CHARS = 16 * 1024
"""The longest grammar that is enforced: reading one takes some microseconds a character. Codex's has one thousand."""

MAX_DEPTH = 32
MAX_REGEX_CHARS = 64 * 1024
"""The longest expressions of all rules together, with the rules in them inserted."""

COMMON = {
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "CR": r"\r",
    "DIGIT": "[0-9]",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
    "HEXDIGIT": "[0-9a-fA-F]",
    "INT": "[0-9]+",
    "LCASE_LETTER": "[a-z]",
    "LETTER": "[A-Za-z]",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "NUMBER": r"[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "SIGNED_INT": "[+-]?[0-9]+",
    "SIGNED_NUMBER": r"[+-]?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?",
    "UCASE_LETTER": "[A-Z]",
    "WORD": "[A-Za-z]+",
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
}
"""Lark's terminals that a grammar may import."""

_TOKEN = re.compile(
    r"""(?P<dropped>//[^\n]*|->\s*\w+|\s+)
    | %import\s+common\s*\.\s*(?P<import>\w+(?:\s*->\s*\w+)?)
    | %import\s+common\s*\((?P<imports>[\w\s,]*)\)
    | (?P<range>"[^"\\]"\s*\.\.\s*"[^"\\]")
    | (?P<string>"(?:[^"\\\n]|\\.)*")(?P<caseless>i?)
    | /(?P<regex>(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)/(?P<flags>[a-z]*)
    | [?!]?(?P<defined>[A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*:
    | (?P<name>[A-Za-z_]\w*)
    | (?P<kept>[|()*+?]|\{\d+(?:,\d*)?\})
    """,
    re.VERBOSE,
)
_ENDS = re.compile(r"\A\^?(.*?)\$?\Z", re.DOTALL)


class _Unsupported(Exception):
    """The grammar cannot be one regular expression."""


class _Name(str):
    """The name of a rule, among terms that are regular expressions and operators."""


def text_parameter(tool: ToolSpec) -> str:
    """Returns the name of the parameter that the tool's grammar constrains; "" where there is none."""
    names = tool.parameters.get("properties")
    return next(iter(names)) if tool.text_grammar is not None and isinstance(names, Mapping) and len(names) == 1 else ""


def text_regex(tool: ToolSpec) -> str:
    """Returns a regular expression (Rust's syntax) of the tool's text; "" where the text is free."""
    grammar = tool.text_grammar
    if grammar is None or not text_parameter(tool) or len(grammar.definition) > MAX_CHARS:
        return ""
    try:
        if grammar.syntax == "lark":
            return _Rules(grammar.definition).regex("start", ())
        if grammar.syntax == "regex":
            return _regex(_ENDS.sub(r"\1", grammar.definition, count=1))
    except _Unsupported:
        pass
    return ""


class _Rules:
    """The rules of a Lark grammar, each as a list of terms."""

    def __init__(self, definition: str) -> None:
        self._terms: dict[str, list[str]] = {}
        self._regexes: dict[str, str] = {}
        current = ""
        for found in _tokens(definition):
            match found.lastgroup:
                case "dropped":
                    continue
                case "defined":
                    current = self._new(found["defined"])
                case "import" | "imports":
                    for one in (found["import"] or found["imports"]).split(","):
                        name, _, alias = (part.strip() for part in one.partition("->"))
                        self._add(self._new(alias or name), f"({COMMON.get(name, '')})")
                    current = ""
                case "name":
                    self._add(current, _Name(found["name"]))
                case _:
                    self._add(current, _term(found))

    def regex(self, name: str, above: tuple[str, ...]) -> str:
        """Returns the expression of a rule, with the rules in it inserted. Raises _Unsupported."""
        if name in self._regexes:
            return self._regexes[name]
        if name in above or name not in self._terms or len(above) > MAX_DEPTH:
            raise _Unsupported
        parts = [
            f"({self.regex(term, (*above, name))})" if isinstance(term, _Name) else term for term in self._terms[name]
        ]
        text = "".join(parts)
        self._regexes[name] = text
        if sum(map(len, self._regexes.values())) > MAX_REGEX_CHARS:
            raise _Unsupported
        return text

    def _new(self, name: str) -> str:
        if name in self._terms:
            raise _Unsupported
        self._terms[name] = []
        return name

    def _add(self, name: str, term: str) -> None:
        if name not in self._terms or term == "()":
            raise _Unsupported
        self._terms[name].append(term)


def _tokens(definition: str) -> Iterator[re.Match[str]]:
    at = 0
    while at < len(definition):
        found = _TOKEN.match(definition, at)
        if found is None:
            raise _Unsupported
        yield found
        at = found.end()


def _term(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "range":
            return f"[{re.escape(found['range'][1])}-{re.escape(found['range'][-2])}]"
        case "caseless":
            try:
                text = literal(json.loads(found["string"]))
            except ValueError:
                raise _Unsupported from None
            return f"(?i:{text})" if found["caseless"] else f"({text})"
        case "flags" if found["flags"] in ("", "s", "u"):
            text = _regex(found["regex"])
            return f"(?s:{text})" if found["flags"] == "s" else f"({text})"
        case "flags":
            raise _Unsupported
        case _:
            return found.group()


def _regex(pattern: str) -> str:
    text = rust_regex(pattern)
    if not text:
        raise _Unsupported
    return text
