"""Tool calls in a family's own format, as a grammar: arguments that fit each tool's schema, and no name but theirs.

    required, named    calls, and nothing else
    strict             any text; where it begins a call, the call is held to the grammar

Written in Lark with `%json` for the arguments. Text stands as a terminal, a special token as itself.
"""

import json
from collections.abc import Mapping, Sequence

from domain.chat import Json, ToolSpec
from domain.errors import InvalidRequest
from domain.grammar import Grammar, GrammarKind, Marker, Pieces, bounded, pieces
from domain.json_schema import checked_schema
from domain.output.written_calls import WrittenCalls
from domain.shown import shown

JSON_OPTIONS: Mapping[str, Json] = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one space where JSON may have white space: a model cannot lose itself in it. Regular expressions."""

_ANY_ARGUMENTS: Mapping[str, Json] = {"type": "object"}


def tool_call_grammar(
    written: WrittenCalls,
    tools: Sequence[ToolSpec],
    special_tokens: Mapping[str, int],
    *,
    must_call: bool,
    max_calls: int | None = None,
) -> Grammar:
    """`must_call`: at least one call and no text beside it. `max_calls`: None for any number.

    Arguments are held to the schemas of strict tools; if a call must be made, to those of the others too, as far as
    they can be enforced. Raises InvalidRequest for `tools`, naming a strict tool's keyword that cannot."""
    format = _Format(written, special_tokens)
    rules = [_call_rule(format, number, tool, must_call) for number, tool in enumerate(tools)]
    names = " | ".join(f"tool_{number}" for number in range(len(tools)))
    rules += [f"inside: {names}", f"call: {format.terms('mark', 'opening')} inside"]
    more = "" if max_calls == 1 else _repeated(f"({format.terms('between')} call)", max_calls)
    if must_call:
        rules.append(f"start: {format.terms('first')} call {more} {format.terms('last')}")
    else:
        rules += _among_text(format, more, is_one=max_calls == 1)
    return Grammar(GrammarKind.LARK, bounded("\n".join(rules) + "\n", "tools"))


def json_rule(schema: Mapping[str, Json]) -> str:
    """A schema as a term of Lark."""
    return "%json " + _json({**schema, "x-guidance": dict(JSON_OPTIONS)})


def quoted(text: str) -> str:
    """A text as a term of Lark."""
    return _json(text)


def terms(pieces: Pieces) -> str:
    """Pieces as terms of Lark."""
    return " ".join(quoted(one.text) if one.token_id is None else f"<[{one.token_id}]>" for one in pieces)


class _Format:
    """A family's way of writing, in one tokenizer's pieces."""

    def __init__(self, written: WrittenCalls, special_tokens: Mapping[str, int]) -> None:
        self.written = written
        self._special_tokens = special_tokens

    def pieces(self, *fields: str) -> Pieces:
        found: tuple[Marker, ...] = ()
        for field in fields:
            found += pieces(getattr(self.written, field), self._special_tokens)
        return found

    def terms(self, *fields: str) -> str:
        return terms(self.pieces(*fields))


def _json(value: Json) -> str:
    """DEL is the one control character that JSON may leave as it is, and Lark may not."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _call_rule(format: _Format, number: int, tool: ToolSpec, must_call: bool) -> str:
    name = quoted(json.dumps(tool.name, ensure_ascii=False)[1:-1])  # inside JSON, and in Lark
    count = f"{format.terms('number')} /[0-9]{{1,3}}/" if format.written.number else ""
    return (
        f"tool_{number}: {name} {count} {format.terms('before_arguments')} arguments_{number}"
        f" {format.terms('closing')}\narguments_{number}: {json_rule(_arguments(tool, must_call))}"
    )


def _arguments(tool: ToolSpec, must_call: bool) -> Mapping[str, Json]:
    """What they are held to."""
    if not (tool.strict or must_call):
        return _ANY_ARGUMENTS
    try:
        return checked_schema({**_ANY_ARGUMENTS, **tool.parameters}, f"tools[{shown(tool.name)}]")
    except InvalidRequest:
        if tool.strict:
            raise
        return _ANY_ARGUMENTS


def _among_text(format: _Format, more: str, *, is_one: bool) -> list[str]:
    """The first piece of what begins a call is what ends the text before it. Behind the only call nothing follows."""
    head, *rest = format.pieces("first", "mark", "opening")
    trigger = f"trigger{'[lazy]' if head.token_id is None else ''}: TEXT {terms((head,))}"
    calls = f"calls: trigger {terms(tuple(rest))} inside {more} {format.terms('last')}"
    times = "?" if format.written.first else "*"
    start = "start: calls | TEXT" if is_one else f"start: calls{times} TEXT"
    return [trigger, calls, start, "TEXT: /(?s:.*)/"]


def _repeated(term: str, max_calls: int | None) -> str:
    return f"{term}*" if max_calls is None else f"{term}{{0,{max_calls - 1}}}"


__all__ = ("JSON_OPTIONS", "json_rule", "quoted", "terms", "tool_call_grammar")
