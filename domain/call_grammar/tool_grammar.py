"""A Lark grammar of tool calls in a family's own format: known names, and arguments that fit each tool's schema.

    required, named    calls, and nothing else
    strict             any text; where it begins a call, the grammar constrains the call

Arguments that are JSON are `%json` rules. Text is a terminal, a special token is itself.
"""

import json
from collections.abc import Mapping, Sequence

from domain.call_grammar.parameters import ParameterRules
from domain.call_grammar.text_grammar import text_parameter, text_regex
from domain.errors import InvalidRequest
from domain.output.family import WrittenCalls
from domain.printable import printable
from domain.request.chat import Json, ToolSpec
from domain.request.grammar import (
    ANY_TEXT,
    MAX_GRAMMAR_BYTES,
    Grammar,
    GrammarKind,
    Marker,
    Pieces,
    bounded,
    json_rule,
    pieces,
    quoted,
    terms,
    until,
)
from domain.request.json_schema import checked_schema

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

    The schemas of strict tools constrain their arguments; if a call must be made, those of other tools do too, where
    they can be enforced. A tool's own grammar constrains its text where it is supported. Raises InvalidRequest for
    `tools`, naming a strict tool's keyword that cannot be enforced."""
    format = _Format(written, special_tokens)
    rules, num_chars = list[str](), 0
    for number, tool in enumerate(tools):
        rules.append(_call_rule(format, number, tool, must_call))
        num_chars += len(rules[-1])
        if num_chars > MAX_GRAMMAR_BYTES:
            break  # already too long: `bounded` refuses it
    names = " | ".join(f"tool_{number}" for number in range(len(tools)))
    rules += [f"inside: {names}", f"call: {format.terms('mark')} inside"]
    more = "" if max_calls == 1 else _repeated(f"({format.terms('between')} call)", max_calls)
    if must_call:
        rules.append(f"start: {format.terms('first')} call {more} {format.terms('last')}")
    else:
        rules += _among_text(format, more, is_one=max_calls == 1)
    return Grammar(GrammarKind.LARK, bounded("\n".join(rules) + "\n", "tools"))


class _Format:
    """A family's way of writing, in one tokenizer's pieces."""

    def __init__(self, written: WrittenCalls, special_tokens: Mapping[str, int]) -> None:
        self.written = written
        self.special_tokens = special_tokens

    def pieces(self, *fields: str) -> Pieces:
        found: tuple[Marker, ...] = ()
        for field in fields:
            found += pieces(getattr(self.written, field), self.special_tokens)
        return found

    def terms(self, *fields: str) -> str:
        return terms(self.pieces(*fields))


def _call_rule(format: _Format, number: int, tool: ToolSpec, must_call: bool) -> str:
    name = quoted(json.dumps(tool.name, ensure_ascii=False)[1:-1])  # inside JSON, and in Lark
    count = f"{format.terms('number')} /[0-9]{{1,3}}/" if format.written.number else ""
    arguments, rules = _arguments_rule(format, number, tool, must_call)
    return "\n".join(
        [
            f"tool_{number}: {format.terms('opening')} {name} {count} {format.terms('before_arguments')}"
            f" arguments_{number} {format.terms('closing')}",
            f"arguments_{number}: {arguments or quoted('')}",
            *rules,
        ]
    )


def _arguments_rule(format: _Format, number: int, tool: ToolSpec, must_call: bool) -> tuple[str, list[str]]:
    parameters = format.written.parameters
    schema: dict[str, Json] = {**_arguments(tool, must_call)}
    text, key = text_regex(tool), text_parameter(tool)
    if parameters is not None:
        param, prefix = f"tools[{printable(tool.name)}]", f"arguments_{number}"
        found = ParameterRules(parameters, format.special_tokens, prefix=prefix, param=param, is_strict=tool.strict)
        return found.only_text(key, text) if text else found.arguments(schema), found.lines
    if text:
        text_schema: Json = {"type": "string", "pattern": f"^({text})$"}
        schema = {"type": "object", "properties": {key: text_schema}, "required": [key], "additionalProperties": False}
    return json_rule(schema), []


def _arguments(tool: ToolSpec, must_call: bool) -> Mapping[str, Json]:
    """Returns the schema that constrains the arguments."""
    if not (tool.strict or must_call):
        return _ANY_ARGUMENTS
    try:
        return checked_schema({**_ANY_ARGUMENTS, **tool.parameters}, f"tools[{printable(tool.name)}]")
    except InvalidRequest:
        if tool.strict:
            raise
        return _ANY_ARGUMENTS


def _among_text(format: _Format, more: str, *, is_one: bool) -> list[str]:
    """The text ends with the marks that begin a call, up to their first special token, or with their first text where
    they have none. Nothing follows the only call."""
    begins = format.pieces("first", "mark")
    special = next((at for at, piece in enumerate(begins) if piece.token_id is not None), None)
    if special is None:
        head, rest = f"trigger[lazy]: TEXT {terms(begins[:1])}", terms(begins[1:])
    else:
        text, rest = until(ANY_TEXT, "", begins)
        head = f"trigger: BEFORE\nBEFORE: {text}"
    calls = f"calls: trigger {rest} inside {more} {format.terms('last')}"
    times = "?" if format.written.first else "*"
    start = "start: calls | TEXT" if is_one else f"start: calls{times} TEXT"
    return [head, calls, start, f"TEXT: {ANY_TEXT}"]


def _repeated(term: str, max_calls: int | None) -> str:
    return f"{term}*" if max_calls is None else f"{term}{{0,{max_calls - 1}}}"
