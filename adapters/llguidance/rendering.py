"""A domain grammar in llguidance's own form: one Lark grammar, or several where reasoning or calls stand around it.

Nothing is forced: where only one text can follow, every way of spelling it in tokens is allowed, and the model chooses.
So the library needs no knowledge of the tokenizer's merges.
"""

import json
from typing import cast

from domain.request.chat import Json
from domain.request.grammar import Grammar, GrammarKind, Reasoning
from domain.request.lark import json_rule, quoted, terms

_OPTIONS = '%llguidance {"no_forcing": true}\n'
_GAP = "/\\n{0,2}/"
"""The text allowed between the end of the reasoning and the answer."""


def rendered(grammar: Grammar) -> str:
    """Return the source of the library's matcher."""
    answer = _rules(grammar) + "\n" + _OPTIONS  # at the end: so it holds, and errors name the client's own lines
    parts = [{"lark_grammar": answer}]
    if grammar.reasoning is not None or grammar.calls:
        parts = [{"lark_grammar": _around(grammar)}, {"name": "answer", "lark_grammar": answer}]
    if grammar.calls:
        parts.append({"name": "calls", "lark_grammar": grammar.calls + _OPTIONS})
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


def _around(grammar: Grammar) -> str:
    """Return the rules for the reasoning before the answer, and for calls in its place."""
    reasoning = grammar.reasoning
    answer = f"{terms(reasoning.before_answer) if reasoning else ''} @answer"
    rules = [f"answer: {answer} | @calls" if grammar.calls else f"answer: {answer}"]
    if reasoning is None:
        rules.append("start: answer")
    else:
        rules += [f"start: {'reasoning' if not reasoning.open else 'reasoning?'} answer", *_reasoning(reasoning)]
    return "\n".join(rules) + "\n" + _OPTIONS


def _reasoning(reasoning: Reasoning) -> list[str]:
    """Return the rules of reasoning. Its free text ends with the first piece of `close`: a suffix, or a token."""
    end, *rest = reasoning.close
    if end.token_id is not None:
        thought = f"thought: TEXT {terms((end,))}\nTEXT: /(?s:.*)/"
    else:
        thought = f"thought[suffix={quoted(end.text)}]: /(?s:.*)/"
    return [f"reasoning: {terms(reasoning.open)} thought {terms(tuple(rest))} {_GAP}", thought]
