"""Proofs about JSON schemas: that no value satisfies several at once, and the values that do not satisfy one.

Both hold for Draft 2020-12 and see through references of the document. They give up, without an answer, where a schema
says more than they know, is nested too deeply, or takes too many steps: the text of a stranger bounds nothing else.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import cast
from urllib.parse import unquote

from domain.request.chat import Json
from domain.request.value_check import first_misfit, type_of

_TYPES = frozenset({"array", "boolean", "null", "number", "object", "string"})
_MAX_DEPTH, _MAX_STEPS, _MAX_CHARS = 8, 100_000, 4_000
_INDEX = re.compile("0|[1-9][0-9]{0,4}")

_OF_TYPE = {
    "array": "additionalItems contains items maxItems minItems prefixItems unevaluatedItems uniqueItems",
    "number": "exclusiveMaximum exclusiveMinimum maximum minimum multipleOf",
    "object": "additionalProperties dependencies dependentRequired dependentSchemas maxProperties minProperties"
    " patternProperties properties propertyNames required unevaluatedProperties",
    "string": "format maxLength minLength pattern",
}
_TYPE_OF = {keyword: type_ for type_, keywords in _OF_TYPE.items() for keyword in keywords.split()}
_OF_ALL = "$dynamicRef $recursiveRef $ref allOf anyOf const else enum if not oneOf then type"

KEYWORDS = frozenset([*_TYPE_OF, *_OF_ALL.split()])
"""All keywords that decide whether a value is valid, each for values of one type or of all. Others are annotations."""

_BEYOND: Mapping[str, tuple[str, int]] = {
    "minLength": ("maxLength", -1),
    "maxLength": ("minLength", 1),
    "minItems": ("maxItems", -1),
    "maxItems": ("minItems", 1),
    "minProperties": ("maxProperties", -1),
    "minimum": ("exclusiveMaximum", 0),
    "maximum": ("exclusiveMinimum", 0),
    "exclusiveMinimum": ("maximum", 0),
    "exclusiveMaximum": ("minimum", 0),
}
"""By limit: the limit of the values beyond it, and how far that is from it."""

_Parts = list[Mapping[str, Json]]


def passed(root: Json, anchors: Mapping[str, Json], reference: Json) -> list[Json]:
    """Returns what a reference passes in the document, its schema last: `#`, `#/$defs/name`, or `#anchor`; an empty
    list where it points to no schema."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return []
    if reference[1:2] not in ("", "/"):
        return [anchors[reference[1:]]] if reference[1:] in anchors else []
    found = [root]
    for part in reference[1:].split("/")[1:]:
        value, name = found[-1], unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and name in value:
            found.append(value[name])
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            found.append(value[int(name)])
        else:
            return []
    return found if isinstance(found[-1], dict | bool) else []


def resolved(root: Json, anchors: Mapping[str, Json], reference: Json) -> Json:
    """Returns the schema that a reference points to; None where it points to none."""
    return next(reversed(passed(root, anchors, reference)), None)


def any_of(schemas: Sequence[Json]) -> Json:
    """Returns a schema that accepts what one of them accepts."""
    if not schemas:
        return False
    return schemas[0] if len(schemas) == 1 else {"anyOf": [*schemas]}


def all_of(schemas: Sequence[Json]) -> Json:
    """Returns a schema that accepts what each of them accepts."""
    told = [one for one in schemas if one is not True and one != {}]
    if not told:
        return True
    return told[0] if len(told) == 1 else {"allOf": told}


class SchemaProofs:
    """Proofs within one document, `root`, which share one limit of steps."""

    def __init__(self, root: Json, anchors: Mapping[str, Json]) -> None:
        self._root = root
        self._anchors = anchors
        self._num_steps = 0

    def target(self, schema: Json) -> Json:
        """Returns the schema that one which is only a reference points to; another schema as it is."""
        for _ in range(_MAX_DEPTH):
            if not isinstance(schema, dict) or schema.keys() & KEYWORDS != {"$ref"}:
                break
            schema = resolved(self._root, self._anchors, schema["$ref"])
        return schema

    def is_empty(self, schemas: Iterable[Json]) -> bool:
        """Returns True if no value satisfies all of these schemas; False also where that is not proven."""
        return self._is_empty(schemas, [], [], 0)

    def complement(self, schema: Json, within: Sequence[Json]) -> list[Json] | None:
        """Returns schemas of which one accepts a value exactly where this one does not, among the values that satisfy
        the schemas `within`; None where that cannot be said."""
        return self._complement(schema, within, 0)

    def _is_empty(self, schemas: Iterable[Json], known: _Parts, choices: list[list[Json]], depth: int) -> bool:
        parts, found = self._parts(schemas)
        if parts is None:
            return True
        if depth > _MAX_DEPTH or self._num_steps > _MAX_STEPS:
            return False
        parts, choices = [*known, *parts], [*choices, *found]
        if not self._types(parts, depth):
            return True
        if not choices:
            return False
        first, *others = choices
        return all(self._is_empty([one], parts, others, depth) for one in first)

    def _parts(self, schemas: Iterable[Json]) -> tuple[_Parts | None, list[list[Json]]]:
        """Returns the schemas that all must be satisfied, through references and `allOf`, and the choices among them;
        None for the schemas where one of them is false."""
        parts, choices = _Parts(), list[list[Json]]()
        waiting, seen = [*schemas], set[str]()
        while waiting and self._num_steps <= _MAX_STEPS:
            schema = waiting.pop()
            self._num_steps += 1
            if schema is False:
                return None, []
            if not isinstance(schema, dict):
                continue
            parts.append(schema)
            if isinstance(reference := schema.get("$ref"), str) and reference not in seen:
                seen.add(reference)
                waiting.append(resolved(self._root, self._anchors, reference))
            waiting += _list(schema.get("allOf"))
            choices += [found for name in ("anyOf", "oneOf") if (found := _list(schema.get(name)))]
        return parts, choices

    def _types(self, parts: _Parts, depth: int) -> set[str]:
        """Returns the types of the values that may satisfy all parts."""
        types = set(_TYPES)
        self._num_steps += len(parts)
        for part in parts:
            if "type" in part:
                types &= _names(part["type"])
        listed = _listed(parts)
        if listed is not None:
            types &= {_type(value) for value in self._fitting(listed, parts)}
        types -= {type_ for type_ in ("array", "number", "string") if _is_crossed(parts, type_)}
        if "object" in types and self._has_empty_member(parts, depth):
            types.discard("object")
        return types

    def _fitting(self, values: list[Json], parts: _Parts) -> list[Json]:
        """Returns the values without those of which one part says that they do not fit."""
        self._num_steps += len(values) * sum(1 + len(_list(part.get("enum"))) for part in parts) // 8
        if self._num_steps > _MAX_STEPS:
            return values
        return [value for value in values if all(first_misfit(value, part) is None for part in parts)]

    def _has_empty_member(self, parts: _Parts, depth: int) -> bool:
        required = {name for part in parts for name in _list(part.get("required")) if isinstance(name, str)}
        return any(self._is_empty(_member(parts, name), [], [], depth + 1) for name in sorted(required))

    def _complement(self, schema: Json, within: Sequence[Json], depth: int) -> list[Json] | None:
        self._num_steps += 1
        if isinstance(schema, bool):
            return [] if schema else [{}]
        if not isinstance(schema, dict) or depth > _MAX_DEPTH or self._num_steps > _MAX_STEPS:
            return None
        found = list[Json]()
        for keyword, value in schema.items():
            type_ = _TYPE_OF.get(keyword)
            if keyword not in KEYWORDS or (type_ and self.is_empty([*within, {"type": type_}])):
                continue
            others = self._without(keyword, value, within, depth + 1)
            if others is None:
                return None
            found += others
        return found

    def _without(self, keyword: str, value: Json, within: Sequence[Json], depth: int) -> list[Json] | None:
        """Returns schemas of the values that do not satisfy one keyword."""
        match keyword:
            case "type":
                return self._other_types(value, within)
            case "enum" | "const":
                return self._other_values(_list(value) if keyword == "enum" else [value], within)
            case "required":
                names = [name for name in _list(value) if isinstance(name, str)]
                return [{"type": "object", "properties": {name: False}} for name in names]
            case "properties":
                return self._other_members(value, within, depth)
            case "additionalProperties" | "items":
                return [] if value is True or value == {} else None
            case "$ref":
                return self._complement(resolved(self._root, self._anchors, value), within, depth)
            case "allOf" | "anyOf":
                each = [self._complement(one, within, depth) for one in _list(value)]
                others = [any_of(one) for one in each if one is not None]
                if None in each:
                    return None
                return others if keyword == "allOf" else [all_of(others)]
            case _:
                return _beyond(keyword, value)

    def _other_types(self, value: Json, within: Sequence[Json]) -> list[Json] | None:
        names = _list(value) or [value]
        if "integer" in names and "number" not in names and not self.is_empty([*within, {"type": "number"}]):
            return None  # no schema is for fractions only
        return _of_types(_TYPES - _names(value))

    def _other_values(self, values: list[Json], within: Sequence[Json]) -> list[Json] | None:
        parts = self._parts(within)[0] or []
        if (listed := _listed(parts)) is not None:
            if len(listed) * len(values) > _MAX_STEPS:
                return None
            left = [one for one in listed if first_misfit(one, {"enum": values}) is not None]
            return [{"enum": left}] if left else []
        values = self._fitting(values, parts)
        types = {_type(value) for value in values}
        if types & {"array", "object"}:
            return None
        found = _of_types(_TYPES - types)
        if "boolean" in types:
            found.extend({"const": one} for one in (True, False) if not any(value is one for value in values))
        if numbers := sorted({cast(float, value) for value in values if _is_number(value)}):
            limits = zip([None, *numbers], [*numbers, None], strict=True)
            for low, high in limits:
                low_limit: dict[str, Json] = {} if low is None else {"exclusiveMinimum": low}
                found.append({"type": "number", **low_limit, **({} if high is None else {"exclusiveMaximum": high})})
        if texts := {value for value in values if isinstance(value, str)}:
            if sum(map(len, texts)) > _MAX_CHARS or max(map(len, texts)) > 100:
                return None
            found.append({"type": "string", "pattern": f"^{_other_texts(texts)}$"})
        return found

    def _other_members(self, properties: Json, within: Sequence[Json], depth: int) -> list[Json] | None:
        if not isinstance(properties, dict):
            return None
        found = list[Json]()
        parts = self._parts(within)[0] or []
        for name, schema in properties.items():
            others = self._complement(schema, _member(parts, name), depth)
            if others is None:
                return None
            if others:
                found.append({"type": "object", "properties": {name: any_of(others)}, "required": [name]})
        return found


def _beyond(keyword: str, value: Json) -> list[Json] | None:
    """Returns schemas of the values beyond a limit; None for a keyword that is none."""
    other, step = _BEYOND.get(keyword, ("", 0))
    if not other or not _is_number(value) or (step and not isinstance(value, int)):
        return None
    limit = cast(float, value) + step
    return [] if step and limit < 0 else [{"type": _TYPE_OF[keyword], other: limit}]


def _member(parts: _Parts, name: str) -> list[Json]:
    """Returns the schemas that an object's member with this name satisfies. Patterns are left out: it may satisfy
    more."""
    found = list[Json]()
    for part in parts:
        properties = part.get("properties")
        if isinstance(properties, dict) and name in properties:
            found.append(properties[name])
        elif "additionalProperties" in part and "patternProperties" not in part:
            found.append(part["additionalProperties"])
    return found


def _listed(parts: _Parts) -> list[Json] | None:
    for part in parts:
        if "const" in part:
            return [part["const"]]
        if isinstance(values := part.get("enum"), list):
            return values
    return None


def _names(value: Json) -> frozenset[str]:
    """Returns the types that `type` names; every type where it names an unknown one."""
    names = frozenset(
        "number" if name == "integer" else name if isinstance(name, str) else "" for name in _list(value) or [value]
    )
    return names if names <= _TYPES else _TYPES


def _type(value: Json) -> str:
    found = type_of(value)
    return "number" if found == "integer" else found


def _of_types(types: frozenset[str]) -> list[Json]:
    return [{"type": [*sorted(types)]}] if types else []


def _is_crossed(parts: _Parts, type_: str) -> bool:
    """Returns True if no value of a type lies between the limits."""
    low, high = (-inf, 0), (inf, 0)
    for name in (name for name in _BEYOND if _TYPE_OF[name] == type_):
        step = int("exclusive" in name)
        for limit in (cast(float, part[name]) for part in parts if _is_number(part.get(name))):
            low, high = (max(low, (limit, step)), high) if "min" in name.lower() else (low, min(high, (limit, -step)))
    return low > high


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _list(value: object) -> list[Json]:
    return cast("list[Json]", value) if isinstance(value, list) else []


def _other_texts(texts: set[str]) -> str:
    """Returns a regular expression of every text but these, by the first character in which one differs."""
    tails: dict[str, set[str]] = {}
    for text in texts:
        if text:
            tails.setdefault(text[0], set()).add(text[1:])
    chars = "".join(f"\\x{{{ord(char):x}}}" for char in sorted(tails))
    options = [] if "" in texts else [""]
    options.append((f"[^{chars}]" if chars else "(?s:.)") + "(?s:.)*")
    options += [f"\\x{{{ord(char):x}}}{_other_texts(tails[char])}" for char in sorted(tails)]
    return f"({'|'.join(options)})"
