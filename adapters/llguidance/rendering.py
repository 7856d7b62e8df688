"""A domain grammar in llguidance's own form: one Lark grammar, or two where reasoning comes first.

Nothing is forced: where only one text can follow, every way of spelling it in tokens is allowed, and the model takes
its own. So the library never has to be told how the tokenizer merges.
"""

import json
from typing import cast

from domain.chat import Json
from domain.grammar import Grammar, GrammarKind, Marker
from domain.tool_grammar import json_rule, quoted

_OPTIONS = '%llguidance {"no_forcing": true}\n'
_GAP = "/\\n{0,2}/"
"""What may stand between the end of the reasoning and the answer."""


def rendered(grammar: Grammar) -> str:
    """What the library's matcher is made of."""
    answer = _rules(grammar) + "\n" + _OPTIONS  # at the end: so it holds, and errors name the client's own lines
    if grammar.reasoning_end is None:
        parts: list[dict[str, str]] = [{"lark_grammar": answer}]
    else:
        parts = [{"lark_grammar": _reasoning(grammar.reasoning_end)}, {"name": "answer", "lark_grammar": answer}]
    return json.dumps({"grammars": parts})


def _rules(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.LARK:
            return grammar.text
        case GrammarKind.JSON_SCHEMA:
            return f"start: {json_rule(cast('dict[str, Json]', json.loads(grammar.text)))}"
        case GrammarKind.JSON_OBJECT:
            return f"start: {json_rule({'type': 'object'})}"
        case GrammarKind.CHOICE:
            return "start: " + " | ".join(quoted(choice) for choice in cast("list[str]", json.loads(grammar.text)))
        case GrammarKind.REGEX:
            from llguidance import regex_to_lark

            return f"start: /{regex_to_lark(grammar.text, 'dw')}/"  # digits are ASCII, as in a schema's patterns


def _reasoning(end: Marker) -> str:
    if end.token_id is not None:
        return f"start: REASONING <[{end.token_id}]> {_GAP} @answer\nREASONING: /(?s:.*)/\n{_OPTIONS}"
    return f"start: reasoning {_GAP} @answer\nreasoning[suffix={quoted(end.text)}]: /(?s:.*)/\n{_OPTIONS}"


__all__ = ("rendered",)
