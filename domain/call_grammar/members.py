"""An object's members in the order of its schema, those that need not be left out or not, as rules of Lark.

There are no others than the schema lists; where it lists none, any name stands for what it says of others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from domain.call_grammar.strings import refused
from domain.request.chat import Json
from domain.shown import shown

ANY_KEY = "/[A-Za-z_][A-Za-z0-9_.-]{0,63}/"


class Member(NamedTuple):
    """One that may be written."""

    key: str
    schema: Json
    is_required: bool


def listed_members(schema: Mapping[str, Json], param: str) -> list[Member]:
    """Raises InvalidRequest for `param` where one is required of which nothing else is said."""
    properties, required = schema.get("properties"), schema.get("required")
    known: Mapping[str, Json] = properties if isinstance(properties, dict) else {}
    wanted = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
    for name in wanted:
        if known.get(name, False) is False:
            raise refused(
                "required", f"names {shown(name)!r}, which is not in properties, and cannot be enforced", param
            )
    must = frozenset(wanted)
    return [Member(key, one, key in must) for key, one in known.items() if one is not False]


def members(written: Sequence[tuple[str, bool]], between: str, rule: Callable[[str], str]) -> str:
    """A term for members, each with whether it must be there; empty for none. `rule` names a rule for a body."""
    if not between:
        return " ".join(term if must else f"{term}?" for term, must in written)
    first, later = "", ""  # from here to the end: where nothing stands yet, and behind something
    may_be_empty = True
    for term, must in reversed(written):
        begun = f"{term} {later}"
        choices = [begun] if must or not first else [begun, first]
        first = rule(" | ".join(choices))
        behind = f"{between} {term}" if must else f"({between} {term})?"
        later = rule(f"{behind} {later}")
        may_be_empty = may_be_empty and not must
    return f"{first}?" if first and may_be_empty else first
