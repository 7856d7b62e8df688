"""Strings that stand in a call as they are, as Lark terms, and regular expressions of clients in Rust's syntax.

A keyword of a JSON schema that cannot be enforced is refused by name.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from domain.errors import InvalidRequest
from domain.printable import printable
from domain.request.chat import Json
from domain.request.grammar import ANY_TEXT, between_slashes, quoted
from domain.request.json_schema import DATE, DATE_TIME, TIME
from domain.request.schema_proofs import KEYWORDS
from domain.request.value_check import first_misfit

_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,5}}"
_WORD = "[A-Za-z0-9._~-]*"
FORMATS: Mapping[str, str] = {
    "date": DATE,
    "date-time": DATE_TIME,
    "duration": "P([0-9]{1,9}[WDMY]|T[0-9]{1,9}[HMS])",
    "email": rf"[A-Za-z0-9_+-]{{1,30}}(\.[A-Za-z0-9_+-]{{1,30}}){{0,2}}@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "time": TIME,
    "uri": rf"[A-Za-z][A-Za-z0-9+.-]{{0,20}}:\/\/{_HOST}(:[0-9]{{1,4}})?(\/{_WORD})*(\?[A-Za-z0-9._~=&-]*)?(#{_WORD})?",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
}
"""Regular expressions of string formats: a subset that covers common values."""

MAX_PATTERN_CHARS = 2_000
"""The longest regular expression of a client that is enforced."""

_SIZES = frozenset({"minLength", "maxLength"})
_PART = re.compile(r"\\.|\(\?:?|\[\^?\]?(?:[^\]\\]|\\.)*\]|\{\d+(?:,\d*)?\}|.", re.DOTALL)
_CLASSES = {"\\d": "[0-9]", "\\w": "[A-Za-z0-9_]", "\\D": "[^0-9]", "\\W": "[^A-Za-z0-9_]"}
_UNSUPPORTED = re.compile(r"[\^${}\[]$|\(\?$|\\[^\WdDwWsSnrtfv]|\[.*(\[|&&|--|~~|\\[^\WdwsSnrtfv]).*\]", re.DOTALL)
"""Constructs that Rust's dialect of regular expressions lacks, or reads differently."""


def string_term(schema: Mapping[str, Json], param: str) -> str:
    """Returns a term for the strings of a schema that allows strings only. Raises InvalidRequest, naming the
    keyword."""
    options, listed = schema.get("anyOf"), _listed(schema)
    if isinstance(options, list) and all(isinstance(one, dict) for one in options):
        only(schema, {"type", "anyOf"}, param)
        return "(" + " | ".join(string_term(one, param) for one in options if isinstance(one, dict)) + ")"
    if listed is not None:
        only(schema, {"type", "enum", "const", *_SIZES}, param)
        checked = {keyword: value for keyword, value in schema.items() if keyword in ("const", *_SIZES)}
        fitting = [one for one in listed if isinstance(one, str) and first_misfit(one, checked) is None]
        if not fitting:
            raise refused("enum", "lists no value that fits the other keywords", param)
        return "(" + " | ".join(quoted(one) for one in dict.fromkeys(fitting)) + ")"
    only(schema, {"type", "pattern", "format", *_SIZES}, param)
    parts = [f"/{part}/" for part in (_sized(schema), _pattern(schema, param), _format(schema, param)) if part]
    return "(" + " & ".join(parts) + ")" if parts else ANY_TEXT


def only(schema: Mapping[str, Json], known: Collection[str], param: str) -> None:
    """Raises InvalidRequest for `param` if a keyword is not known, annotations apart."""
    for keyword in schema:
        if keyword in KEYWORDS and keyword not in known:
            raise refused(keyword, "cannot be enforced", param)


def refused(keyword: str, why: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{param}: the keyword {printable(keyword)} {why} in this model's format of tool calls", param=param
    )


def _listed(schema: Mapping[str, Json]) -> list[Json] | None:
    listed = schema.get("enum")
    if isinstance(listed, list):
        return listed
    return [schema["const"]] if "const" in schema else None


def _sized(schema: Mapping[str, Json]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"(?s:.{{{least},{most}}})" if least or "maxLength" in schema else ""


def _pattern(schema: Mapping[str, Json], param: str) -> str:
    """Returns an expression for the strings in which the pattern matches anywhere, unless an anchor ties it to an
    end."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return ""
    parts = _parts(pattern)
    before = "" if parts[:1] == ["^"] else "(?s:.*)"
    after = "" if parts[-1:] == ["$"] else "(?s:.*)"
    inner = parts[not before : len(parts) - (not after)]
    is_split = _has_choices(inner) and not (before and after)  # an end may belong to one of them only
    if is_split or not _is_supported(inner):
        raise refused("pattern", f"{printable(pattern)!r} cannot be enforced", param)
    return f"{before}({''.join(map(_rust, inner))}){after}"


def rust_regex(pattern: str) -> str:
    """Returns a client's regular expression without anchors in Rust's syntax, as it stands between slashes in Lark; ""
    where it is empty or not supported."""
    parts = _parts(pattern)
    return "".join(map(_rust, parts)) if _is_supported(parts) else ""


def _parts(pattern: str) -> list[str]:
    """Returns the parts of a regular expression, up to a bracket that nothing closes: each further one would search for
    its end again."""
    parts: list[str] = []
    for found in _PART.finditer(pattern):
        parts.append(found[0])
        if found[0] == "[":
            break
    return parts


def _is_supported(parts: Sequence[str]) -> bool:
    return sum(map(len, parts)) <= MAX_PATTERN_CHARS and not any(map(_UNSUPPORTED.match, parts))


def _has_choices(parts: Sequence[str]) -> bool:
    depth = 0
    for part in parts:
        depth += part.startswith("(") - (part == ")")
        if part == "|" and depth == 0:
            return True
    return False


def _rust(part: str) -> str:
    if part.startswith("["):
        part = part.replace("\\d", "0-9").replace("\\w", "A-Za-z0-9_")
    return between_slashes(_CLASSES.get(part, part))


def _format(schema: Mapping[str, Json], param: str) -> str:
    format = schema.get("format")
    if not isinstance(format, str):
        return ""
    if format not in FORMATS:
        raise refused("format", f"{printable(format)!r} cannot be enforced", param)
    return FORMATS[format]
