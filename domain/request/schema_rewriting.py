"""A schema without `oneOf`, `not`, `if`, dependencies and `propertyNames`: what they say, said by other keywords.

    {"oneOf": [A, B]}                        {"anyOf": [A, B]}, where no value satisfies both
                                             {"anyOf": [{"allOf": [A, not B]}, {"allOf": [B, not A]}]}, where one may
    {"not": A}                               the complement of A
    {"if": A, "then": B, "else": C}          {"anyOf": [{"allOf": [A, B]}, {"allOf": [not A, C]}]}
    {"dependentRequired": {"a": ["b"]}}      {"anyOf": [{"properties": {"a": false}}, {"required": ["a", "b"]}]}
    {"propertyNames": {"pattern": "^a"}}     {"patternProperties": {"^a": true}, "additionalProperties": false}

Nothing is approximated. A complement that no schema states (of a pattern, of all items) makes its keyword a refusal.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from domain.request.chat import Json
from domain.request.schema_proofs import KEYWORDS, SchemaProofs, all_of, any_of

MAX_DEPENDENCIES = 6
"""The most dependencies of one object. Each doubles its forms."""

REWRITTEN = frozenset(
    {"dependencies", "dependentRequired", "dependentSchemas", "else", "if", "not", "oneOf", "propertyNames", "then"}
)


class Refusal(NamedTuple):
    """A keyword that cannot be enforced. `why` ends a sentence that it is the subject of."""

    keyword: str
    why: str


_Schema: TypeAlias = dict[str, Json]


def rewritten(schema: _Schema, within: Sequence[Json], proofs: SchemaProofs) -> _Schema | bool | Refusal:
    """Returns an equal schema without the keywords above, which the schemas in its own keywords no longer have.

    `within`: schemas that a value satisfies too wherever this one applies."""
    found = {keyword: value for keyword, value in schema.items() if keyword not in REWRITTEN}
    known, said = [*within, found], list[Json]()
    for rule in (_one_of, _not, _if, _dependencies, _property_names):
        more = rule(schema, known, proofs)
        if isinstance(more, Refusal):
            return more
        said += more
    if False in said:
        return False
    only = said[0] if len(said) == 1 and "oneOf" in schema else None
    if isinstance(only, dict) and only.keys() == {"anyOf"} and not found.keys() & {"allOf", "anyOf"}:
        return {**found, **only}
    every = found.get("allOf")
    return {**found, "allOf": [*(every if isinstance(every, list) else []), *said]} if said else found


def _one_of(schema: _Schema, known: Sequence[Json], proofs: SchemaProofs) -> list[Json] | Refusal:
    branches = schema.get("oneOf")
    if not isinstance(branches, list):
        return [] if "oneOf" not in schema else Refusal("oneOf", "must be a list")
    others: list[list[Json]] = [[] for _ in branches]
    for index, branch in enumerate(branches):
        for number, other in enumerate(branches[:index]):
            if proofs.is_empty([*known, branch, other]):
                continue
            for mine, its, place in ((index, other, number), (number, branch, index)):
                complement = proofs.complement(its, [*known, branches[mine]])
                if complement is None:
                    return Refusal(
                        "oneOf",
                        f"has choices {number} and {index} that a value may satisfy both, and what does not satisfy"
                        f" {place} cannot be stated; use anyOf, or a required property that tells them apart by const",
                    )
                others[mine].append(any_of(complement))
    return [any_of([all_of([branch, *some]) for branch, some in zip(branches, others, strict=True)])]


def _not(schema: _Schema, known: Sequence[Json], proofs: SchemaProofs) -> list[Json] | Refusal:
    if "not" not in schema:
        return []
    complement = proofs.complement(schema["not"], known)
    if complement is None:
        return Refusal("not", "is supported for type, const, enum, required, properties, limits, and choices of these")
    return [any_of(complement)]


def _if(schema: _Schema, known: Sequence[Json], proofs: SchemaProofs) -> list[Json] | Refusal:
    if "if" not in schema or not schema.keys() & {"then", "else"}:
        return []
    condition = schema["if"]
    complement = proofs.complement(condition, known)
    if complement is None:
        return Refusal("if", "is supported for type, const, enum, required, properties, limits, and choices of these")
    then, otherwise = all_of([condition, schema.get("then", True)]), schema.get("else", True)
    if not complement:
        return [then]
    return [any_of([then, all_of([any_of(complement), otherwise])])]


def _dependencies(schema: _Schema, _known: Sequence[Json], _proofs: SchemaProofs) -> list[Json] | Refusal:
    found = list[Json]()
    for keyword in ("dependencies", "dependentRequired", "dependentSchemas"):
        dependencies = schema.get(keyword, {})
        if not isinstance(dependencies, dict):
            return Refusal(keyword, "must be an object")
        for name, wanted in dependencies.items():
            present: Json = {"type": "object", "required": [name]}
            if isinstance(wanted, list):
                present = {"type": "object", "required": [*(one for one in wanted if one != name), name]}
            elif isinstance(wanted, dict | bool):
                present = all_of([present, wanted])
            else:
                return Refusal(keyword, "must have lists of names or schemas")
            found.append({"anyOf": [{"properties": {name: False}}, present]})
            if len(found) > MAX_DEPENDENCIES:
                return Refusal(keyword, f"is supported for at most {MAX_DEPENDENCIES} properties of an object")
    return found


def _property_names(schema: _Schema, _known: Sequence[Json], proofs: SchemaProofs) -> list[Json] | Refusal:
    names = proofs.target(schema.get("propertyNames", True))
    if isinstance(names, bool):
        return [] if names else [{"additionalProperties": False}]
    stated = names if isinstance(names, dict) else {}
    keywords = stated.keys() & KEYWORDS
    if stated.get("type", "string") != "string" or not keywords <= _NAME_KEYWORDS:
        return Refusal("propertyNames", "is supported for pattern, enum, const, minLength and maxLength")
    found = list[Json]()
    if isinstance(pattern := stated.get("pattern"), str):
        found.append({"patternProperties": {pattern: True}, "additionalProperties": False})
    if keywords & {"minLength", "maxLength"}:
        sizes = f"(?s:^.{{{stated.get('minLength', 0)},{stated.get('maxLength', '')}}}$)"
        found.append({"patternProperties": {sizes: True}, "additionalProperties": False})
    for listed in (stated.get("enum"), [stated["const"]] if "const" in stated else None):
        if isinstance(listed, list):
            properties: _Schema = {name: True for name in listed if isinstance(name, str)}
            found.append({"properties": properties, "additionalProperties": False})
    return found


_NAME_KEYWORDS = frozenset({"const", "enum", "maxLength", "minLength", "pattern", "type"})
