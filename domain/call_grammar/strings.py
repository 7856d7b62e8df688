"""Strings that stand in a call as they are, as terms of a terminal: what their JSON schema allows of any text.

A keyword that cannot be stated so is refused by name.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from domain.errors import InvalidRequest
from domain.output.calls.schema_check import first_misfit
from domain.request.chat import Json
from domain.request.json_schema import DATE, DATE_TIME, TIME
from domain.request.lark import ANY_TEXT, between_slashes, quoted
from domain.shown import shown

ANNOTATIONS = frozenset(
    [
        "$anchor",
        "$comment",
        "$defs",
        "$id",
        "$schema",
        "contentEncoding",
        "contentMediaType",
        "contentSchema",
        "default",
        "definitions",
        "deprecated",
        "description",
        "discriminator",
        "example",
        "examples",
        "externalDocs",
        "nullable",
        "readOnly",
        "title",
        "writeOnly",
        "xml",
    ]
)
"""Keywords that allow no less and no more."""

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
"""Some of what each format allows: what people write."""

MAX_PATTERN_CHARS = 2_000

_SIZES = frozenset({"minLength", "maxLength"})
_PART = re.compile(r"\\.|\(\?:?|\[\^?\]?(?:[^\]\\]|\\.)*\]|.", re.DOTALL)
_CLASSES = {"\\d": "[0-9]", "\\w": "[A-Za-z0-9_]", "\\D": "[^0-9]", "\\W": "[^A-Za-z0-9_]"}
_ELSEWHERE = re.compile(r"[\^$]$|\(\?$|\\[^\WdDwWsSnrtfv]|\[.*(\[|&&|--|~~|\\[^\WdwsSnrtfv]).*\]", re.DOTALL)
"""What regular expressions know in some places and not in others."""


def string_term(schema: Mapping[str, Json], param: str) -> str:
    """Strings of a schema that allows nothing else. Raises InvalidRequest for `param`, naming the keyword."""
    options, listed = schema.get("anyOf"), _listed(schema)
    if isinstance(options, list) and all(isinstance(one, dict) for one in options):
        only(schema, {"type", "anyOf"}, param)
        return "(" + " | ".join(string_term(one, param) for one in options if isinstance(one, dict)) + ")"
    if listed is not None:
        only(schema, {"type", "enum", "const", *_SIZES}, param)
        checked = {keyword: value for keyword, value in schema.items() if keyword in ("const", *_SIZES)}
        fitting = [one for one in listed if isinstance(one, str) and first_misfit(one, checked) is None]
        if not fitting:
            raise refused("enum", "lists nothing that fits", param)
        return "(" + " | ".join(quoted(one) for one in dict.fromkeys(fitting)) + ")"
    only(schema, {"type", "pattern", "format", *_SIZES}, param)
    parts = [f"/{part}/" for part in (_sized(schema), _pattern(schema, param), _format(schema, param)) if part]
    return "(" + " & ".join(parts) + ")" if parts else ANY_TEXT


def only(schema: Mapping[str, Json], known: Collection[str], param: str) -> None:
    """Raises InvalidRequest for `param` where a keyword is none of these and no annotation."""
    for keyword in schema:
        if keyword not in known and keyword not in ANNOTATIONS:
            raise refused(keyword, "cannot be enforced", param)


def refused(keyword: str, why: str, param: str) -> InvalidRequest:
    return InvalidRequest(f"{param}: the keyword {shown(keyword)} {why} in this model's form of calls", param=param)


def _listed(schema: Mapping[str, Json]) -> list[Json] | None:
    listed = schema.get("enum")
    if isinstance(listed, list):
        return listed
    return [schema["const"]] if "const" in schema else None


def _sized(schema: Mapping[str, Json]) -> str:
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    return f"(?s:.{{{least},{most}}})" if least or "maxLength" in schema else ""


def _pattern(schema: Mapping[str, Json], param: str) -> str:
    """A pattern is searched for, wherever nothing ties it to an end."""
    pattern = schema.get("pattern")
    if not isinstance(pattern, str):
        return ""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise refused("pattern", f"{shown(pattern)!r} is too long to be enforced", param)
    parts: list[str] = []
    for found in _PART.finditer(pattern):
        if found[0] == "[":  # nothing closes it, and each further one would look for its end again
            raise refused("pattern", f"{shown(pattern)!r} cannot be enforced", param)
        parts.append(found[0])
    before = "" if parts[:1] == ["^"] else "(?s:.*)"
    after = "" if parts[-1:] == ["$"] else "(?s:.*)"
    inner = parts[not before : len(parts) - (not after)]
    is_split = _has_choices(inner) and not (before and after)  # an end may belong to one of them only
    if is_split or any(map(_ELSEWHERE.match, inner)):
        raise refused("pattern", f"{shown(pattern)!r} cannot be enforced", param)
    return f"{before}({''.join(map(_rust, inner))}){after}"


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
        raise refused("format", f"{shown(format)!r} cannot be enforced", param)
    return FORMATS[format]
