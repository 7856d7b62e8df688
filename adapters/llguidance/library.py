"""The llguidance library: imported when a model is loaded, with limits that bound the cost of one grammar.

A domain grammar becomes one Lark grammar, or several where reasoning or calls stand around the answer. No text is
forced: where only one text can follow, every way of spelling it in tokens is allowed, and the model chooses. So the
library needs no knowledge of the tokenizer's merges.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from domain.models.model_card import Vocabulary
from domain.request.chat import Json
from domain.request.grammar import Grammar, GrammarKind, Reasoning, json_rule, quoted, terms

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

LIMITS: Mapping[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 20_000,  # 1 to 2 kB each, for every sequence
    "max_grammar_size": 200_000,
}


def new_matcher(tokenizer: "LLTokenizer", grammar: str) -> "LLMatcher":
    """Never raises: the matcher of a grammar that cannot be compiled is in its error state."""
    from llguidance import LLMatcher, LLParserLimits

    return LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(**LIMITS, verbose_errors=False))


def new_tokenizer(vocabulary: Vocabulary) -> "LLTokenizer":
    """Half a second of work and some 50 MB for 150,000 tokens. Raises ValueError.

    The library holds the interpreter's lock during a call, so it is called in two parts of about equal length, between
    which other threads run.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = sorted(id for id in vocabulary.eos_token_ids if id < len(vocabulary.tokens))
    if not ends:
        raise ValueError("the tokenizer has no token that ends an answer")
    tokens = _Tokens(vocabulary, ends)
    wrapper = TokenizerWrapper(tokens)
    made = LLTokenizer(wrapper, eos_token=ends, slices=[]).with_slices(LLTokenizer.general_slices())
    wrapper.tokens = tokens.tokens = []  # the library has copied it
    return made


class _Tokens:
    """The tokenizer that `TokenizerWrapper` expects."""

    def __init__(self, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        self.eos_token_id = ends[0]
        self.bos_token_id = None
        self.special_token_ids = sorted({*vocabulary.special, *ends})
        names = {id: name.encode() for id, name in vocabulary.special.items()}
        self.tokens = [names.get(id, token) for id, token in enumerate(vocabulary.tokens)]
        self._token_of_byte = {token: id for id, token in enumerate(vocabulary.tokens) if len(token) == 1}

    def __call__(self, text: str | bytes) -> list[int]:
        """Encode byte by byte. Called only where a grammar forces text, and none does (see `rendered`)."""
        data = text.encode() if isinstance(text, str) else text
        found = (self._token_of_byte.get(data[at : at + 1]) for at in range(len(data)))
        return [id for id in found if id is not None]


_OPTIONS = '%llguidance {"no_forcing": true}\n'
_GAP = "/\\n{0,2}/"
"""The text allowed between the end of the reasoning and the answer."""


def rendered(grammar: Grammar) -> str:
    """Returns the source of the library's matcher."""
    answer = _rules(grammar) + "\n" + _OPTIONS  # at the end, so that errors name the client's own line numbers
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
    """Returns the rules for the reasoning before the answer, and for calls in its place."""
    reasoning = grammar.reasoning
    answer = f"{terms(reasoning.before_answer) if reasoning else ''} @answer"
    rules = [f"answer: {answer} | @calls" if grammar.calls else f"answer: {answer}"]
    if reasoning is None:
        rules.append("start: answer")
    else:
        rules += [f"start: {'reasoning' if not reasoning.open else 'reasoning?'} answer", *_reasoning(reasoning)]
    return "\n".join(rules) + "\n" + _OPTIONS


def _reasoning(reasoning: Reasoning) -> list[str]:
    """Returns the rules of reasoning. Its free text ends with the first piece of `close`: a suffix, or a token."""
    end, *rest = reasoning.close
    if end.token_id is not None:
        thought = f"thought: TEXT {terms((end,))}\nTEXT: /(?s:.*)/"
    else:
        thought = f"thought[suffix={quoted(end.text)}]: /(?s:.*)/"
    return [f"reasoning: {terms(reasoning.open)} thought {terms(tuple(rest))} {_GAP}", thought]
