"""A tool's own grammar (Lark or a regular expression) of the one text that it takes, as a terminal in a call.

Rules become terminals, which can be intersected with the text that may not end the argument too early, and hold each
other's characters apart where JSON writes two for one. So a rule may not refer to itself.

Inside quotes a line's end is two characters, and a class of characters is those of it that stand as they are, or one of
the escapes for the rest.

Unsupported: directives, special tokens, `&` and `~`, anchors and look-around. A text with such a grammar is free: the
model was shown the grammar. In quotes, control characters without an escape of their own are left out.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from domain.errors import InvalidRequest
from domain.request.chat import ToolSpec
from domain.request.grammar import between_slashes, literal, quoted
from domain.shown import shown

PARAM = "tools"

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
    r"""(?P<dropped>//[^\n]*|->\s*\w+)
    | (?P<import>%import\s+common\s*\.\s*(?P<one>\w+)(?:\s*->\s*(?P<alias>\w+))?)
    | (?P<imports>%import\s+common\s*\((?P<several>[\w\s,]*)\))
    | (?P<range>"(?P<low>[^"\\])"\s*\.\.\s*"(?P<high>[^"\\])")
    | (?P<string>"(?:[^"\\\n]|\\.)*")(?P<caseless>i?)
    | /(?P<regex>(?:[^/\\\n\[]|\\.|\[(?:[^\]\\\n]|\\.)*\])+)/(?P<flags>[a-z]*)
    | [?!]?(?P<defined>[A-Za-z_]\w*)(?:\.-?\d+)?[ \t]*:
    | (?P<name>[A-Za-z_]\w*)
    | (?P<kept>[|()*+?]|\s+|\{\d+(?:,\d*)?\})
    """,
    re.VERBOSE,
)
_PART = re.compile(r"\\.|\(\?:|\(\?|\[\^?\]?(?:[^\]\\]|\\.)*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)
_SPECIAL = '"\\\n\r\t\b\f'
"""What JSON writes otherwise, and what grammars of text mean by it."""
_PLAIN = r'[^"\\\x00-\x1f]'
_OPERATORS = frozenset("()|*+?")
_REFUSED = frozenset({"^", "$", "{", "}", "[", "(?"})
_ODD_ESCAPE = re.compile(r"\\[^\WdDwWsSnrtf]")
_CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f"}
_CLASSES = frozenset("dDwWsS")
MAX_DEPTH = 32
"""Of terminals in terminals."""

MAX_PATTERN_CHARS = 2_000
"""Of one regular expression."""


class RegularGrammar(NamedTuple):
    """`start`: the terminal that matches the text; `rules` define it."""

    start: str
    rules: list[str]


def regular_grammar(definition: str, prefix: str, *, is_quoted: bool) -> RegularGrammar:
    """`prefix`: what the names of terminals begin with, in capitals. Raises InvalidRequest for a grammar that cannot be
    told so."""
    reading = _Reading(prefix, is_quoted=is_quoted)
    at = 0
    while at < len(definition):
        found = _TOKEN.match(definition, at)
        if found is None:
            raise _refused(definition[at : at + 40])
        reading.take(found)
        at = found.end()
    return reading.end()


class _Reading:
    """The definitions read so far, by their names in the client's grammar."""

    def __init__(self, prefix: str, *, is_quoted: bool) -> None:
        self._prefix = prefix
        self._is_quoted = is_quoted
        self._bodies: dict[str, list[str]] = {}
        self._uses: dict[str, set[str]] = {}
        self._names: dict[str, str] = {}
        self._current = ""

    def take(self, found: re.Match[str]) -> None:
        match found.lastgroup:
            case "dropped":
                pass
            case "defined":
                self._define(found["defined"])
            case "import":
                self._import(found["one"], found["alias"] or found["one"])
            case "imports":
                for name in found["several"].split(","):
                    self._import(name.strip(), name.strip())
            case "name":
                self._uses.setdefault(self._current, set()).add(found["name"])
                self._add(self._named(found["name"]))
            case _:
                self._add(self._term(found))

    def end(self) -> RegularGrammar:
        if "start" not in self._bodies:
            raise _refused("a grammar without start")
        self._check("start", ())
        rules = [f"{self._named(name)}: {''.join(body).strip()}" for name, body in self._bodies.items()]
        return RegularGrammar(self._named("start"), rules)

    def _define(self, name: str) -> None:
        if name in self._bodies:
            raise _refused(name)
        self._current, self._bodies[name] = name, []

    def _import(self, name: str, alias: str) -> None:
        if name not in COMMON:
            raise _refused(f"%import common.{name}")
        self._define(alias)
        self._add(self._regex(COMMON[name]))
        self._current = ""

    def _add(self, term: str) -> None:
        if self._current:
            self._bodies[self._current].append(term)
        elif term.strip():
            raise _refused(term)

    def _named(self, name: str) -> str:
        return self._names.setdefault(name, f"{self._prefix}_{len(self._names)}")

    def _check(self, name: str, above: tuple[str, ...]) -> None:
        if name in above or name not in self._bodies or len(above) > MAX_DEPTH:
            raise _refused(f"{name}, which is not defined, or by itself")
        for used in sorted(self._uses.pop(name, ())):
            self._check(used, (*above, name))

    def _term(self, found: re.Match[str]) -> str:
        match found.lastgroup:
            case "range":
                return self._regex(f"[{re.escape(found['low'])}-{re.escape(found['high'])}]")
            case "caseless":
                return _string(found["string"], found["caseless"], is_quoted=self._is_quoted)
            case "flags" if found["flags"] in ("", "s", "u"):
                return self._regex(found["regex"], dot_all=found["flags"] == "s")
            case "flags":
                raise _refused(found.group())
            case _:
                return found.group()

    def _regex(self, pattern: str, *, dot_all: bool = False) -> str:
        return f"/{written_regex(pattern, dot_all=dot_all, is_quoted=self._is_quoted)}/"


def _string(text: str, caseless: str, *, is_quoted: bool) -> str:
    try:
        value = json.loads(text)
    except ValueError:
        raise _refused(text) from None
    inner = json.dumps(value, ensure_ascii=False)[1:-1] if is_quoted else value
    if caseless and inner != value:
        raise _refused(text + caseless)
    return quoted(inner) + caseless


def written_regex(pattern: str, *, dot_all: bool = False, is_quoted: bool = True) -> str:
    """A regular expression of what is written for what this one matches. Raises InvalidRequest."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise _refused(pattern)
    return "".join(_part(part, dot_all=dot_all, is_quoted=is_quoted) for part in _parts(pattern))


def _parts(pattern: str) -> Iterator[str]:
    """One by one: a bracket that nothing closes is refused before the next one looks for its end."""
    return (found[0] for found in _PART.finditer(pattern))


def _part(part: str, *, dot_all: bool, is_quoted: bool) -> str:
    if part in _OPERATORS or part == "(?:" or (part.startswith("{") and len(part) > 1):
        return "(" if part == "(?:" else part
    if part == ".":
        return _class(r"[\s\S]" if dot_all else r"[^\n]", is_quoted=is_quoted)
    if part in _REFUSED:
        raise _refused(part)
    if part.startswith("["):
        return _class(part, is_quoted=is_quoted)
    if part.startswith("\\"):
        if part[1] in _CLASSES:
            return _class(f"[{part}]", is_quoted=is_quoted)
        if part[1].isalnum() and part[1] not in _CONTROLS:
            raise _refused(part)
        part = _CONTROLS.get(part[1], part[1])
    return f"({_escape(part)})" if is_quoted and part in _SPECIAL else literal(part)


def _class(members: str, *, is_quoted: bool) -> str:
    """Both kinds of regular expressions read the classes that are let through alike."""
    if any(sign in members[1:] for sign in ("[", "&&", "--", "~~")) or _ODD_ESCAPE.search(members):
        raise _refused(members)
    try:
        held = re.compile(members)
    except re.error:
        raise _refused(members) from None
    if not is_quoted:
        return between_slashes(members)
    escapes = [_escape(char) for char in _SPECIAL if held.match(char)]
    return "(" + "|".join([between_slashes(f"[{members}&&{_PLAIN}]"), *escapes]) + ")"


def _escape(char: str) -> str:
    """What JSON writes for it, as a regular expression."""
    return literal(json.dumps(char)[1:-1])


def _refused(what: str) -> InvalidRequest:
    return InvalidRequest(f"{PARAM}: {shown(what)!r} of a tool's grammar cannot be enforced", param=PARAM)


MAX_CHARS = 16 * 1024
"""Of a grammar that is held: reading one takes some microseconds a character. Codex's has one thousand."""

_ENDS = re.compile(r"\A\^?(.*?)\$?\Z", re.DOTALL)


def text_parameter(tool: ToolSpec) -> str:
    """The name of the parameter that the tool's grammar holds; "" where there is none."""
    names = tool.parameters.get("properties")
    return next(iter(names)) if tool.text_grammar is not None and isinstance(names, Mapping) and len(names) == 1 else ""


def text_terminal(tool: ToolSpec, prefix: str, *, is_quoted: bool) -> RegularGrammar | None:
    """What the text may be, as it stands or in JSON's quotes; None where that is free. `prefix`: begins the names of
    the rules, in capitals."""
    told = tool.text_grammar
    if told is None or not text_parameter(tool) or len(told.definition) > MAX_CHARS:
        return None
    try:
        if told.syntax == "lark":
            return regular_grammar(told.definition, prefix, is_quoted=is_quoted)
        if told.syntax == "regex":
            inner = _ENDS.sub(r"\1", told.definition, count=1)
            return RegularGrammar(prefix, [f"{prefix}: /{written_regex(inner, is_quoted=is_quoted)}/"])
    except InvalidRequest:
        pass
    return None


def has_held_text(tool: ToolSpec) -> bool:
    """Whether the tool's text is held to its grammar, however it is written."""
    return all(text_terminal(tool, "TEXT", is_quoted=is_quoted) for is_quoted in (False, True))
