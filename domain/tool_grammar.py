"""Tool calls in a family's own format, as a grammar: arguments that fit each tool's schema, and no name but theirs.

    required, named    calls, and nothing else
    strict             any text; where it begins a call, the call is held to the grammar

Written in Lark with `%json` for the arguments. Text stands as a terminal, a special token as itself.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from domain.chat import Json, ToolSpec
from domain.grammar import Grammar, GrammarKind, Marker, bounded
from domain.json_schema import checked_schema

Pieces: TypeAlias = tuple[Marker, ...]

JSON_OPTIONS: Mapping[str, Json] = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one space where JSON may have white space: a model cannot lose itself in it. Regular expressions."""


@dataclass(frozen=True, slots=True)
class CallFormat:
    """How a family writes calls: `first`, then for each call `opening`, name, `before_arguments`, arguments as JSON,
    `closing`, with `between` between two calls, then `last`.

        Hermes    opening `<tool_call>\\n{"name": "`   before_arguments `", "arguments": `   closing `}\\n</tool_call>`
    """

    opening: Pieces
    before_arguments: Pieces
    closing: Pieces = ()
    first: Pieces = ()
    between: Pieces = ()
    last: Pieces = ()


def tool_call_grammar(
    format: CallFormat, tools: Sequence[ToolSpec], *, must_call: bool, max_calls: int | None = None
) -> Grammar:
    """`must_call`: at least one call and no text beside it. `max_calls`: None for any number.

    Raises InvalidRequest for `tools`, naming the keyword of a schema that cannot be enforced."""
    rules = [_call_rule(format, number, tool) for number, tool in enumerate(tools)]
    names = " | ".join(f"tool_{number}" for number in range(len(tools)))
    rules += [f"inside: {names}", f"call: {_terms(format.opening)} inside"]
    if must_call:
        more = "" if max_calls == 1 else _repeated(f"({_terms(format.between)} call)", max_calls)
        rules.append(f"start: {_terms(format.first)} call {more} {_terms(format.last)}")
    else:
        rules += _among_text(format, max_calls)
    return Grammar(GrammarKind.LARK, bounded("\n".join(rules) + "\n", "tools"))


def json_rule(schema: Mapping[str, Json]) -> str:
    """A schema as a term of Lark."""
    return "%json " + _json({**schema, "x-guidance": dict(JSON_OPTIONS)})


def quoted(text: str) -> str:
    """A text as a term of Lark."""
    return _json(text)


def _json(value: Json) -> str:
    """DEL is the one control character that JSON may leave as it is, and Lark may not."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _call_rule(format: CallFormat, number: int, tool: ToolSpec) -> str:
    schema = checked_schema(dict(tool.parameters) or {"type": "object"}, f"tools[{number}]")
    name = quoted(json.dumps(tool.name, ensure_ascii=False)[1:-1])  # inside JSON, and in Lark
    return (
        f"tool_{number}: {name} {_terms(format.before_arguments)} arguments_{number} {_terms(format.closing)}\n"
        f"arguments_{number}: {json_rule(schema)}"
    )


def _among_text(format: CallFormat, max_calls: int | None) -> list[str]:
    """The first piece of what begins a call is what ends the text before it."""
    head, *rest = (*format.first, *format.opening)
    if head.token_id is None:
        trigger = [f"trigger[lazy]: TEXT {quoted(head.text)}"]
    else:
        trigger = [f"trigger: TEXT {_term(head)}"]
    more = "" if max_calls == 1 else _repeated(f"({_terms(format.between)} call)", max_calls)
    calls = f"trigger {_terms(tuple(rest))} inside {more} {_terms(format.last)}"
    times = "?" if format.first or max_calls == 1 else "*"
    return [*trigger, f"calls: {calls}", f"start: calls{times} TEXT", "TEXT: /(?s:.*)/"]


def _repeated(term: str, max_calls: int | None) -> str:
    return f"{term}*" if max_calls is None else f"{term}{{0,{max_calls - 1}}}"


def _terms(pieces: Pieces) -> str:
    return " ".join(_term(piece) for piece in pieces)


def _term(piece: Marker) -> str:
    return quoted(piece.text) if piece.token_id is None else f"<[{piece.token_id}]>"


__all__ = ("JSON_OPTIONS", "CallFormat", "Pieces", "json_rule", "quoted", "tool_call_grammar")
