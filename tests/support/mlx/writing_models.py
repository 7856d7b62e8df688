"""A family's tokenizer, what a grammar lets it write, and what its parser reads: calls of one tool."""

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from adapters.llguidance.library import new_matcher, new_tokenizer, rendered
from adapters.tokenizers.hf_tokenizer import HfTokenizer
from domain.call_grammar.tool_grammar import tool_call_grammar
from domain.errors import InvalidRequest
from domain.output.family import Values, WrittenCalls
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.grammar import Grammar
from domain.request.request import ChatPrompt
from tests.support.http.replay.transcripts import TRANSCRIPTS, Told, Transcript, told
from tests.support.text.output_parsers import model_of, numbered_ids

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_HURRY = 0.9
"""How often the walk goes for the end of what it is in."""


def takes(tokens: "LLTokenizer", grammar: Grammar, token_ids: Sequence[int]) -> bool:
    """Whether a model held to it may write these and end there."""
    matcher = new_matcher(tokens, rendered(grammar))
    assert not matcher.is_error(), matcher.get_error()
    for token_id in token_ids:
        mask = matcher.compute_bitmask()
        if not mask[token_id // 8] >> (token_id % 8) & 1:
            return False
        matcher.consume_token(token_id)
    matcher.compute_bitmask()
    return bool(matcher.is_accepting())


class WritingModel:
    def __init__(self, case: Transcript, folder: Path) -> None:
        tokenizer = model_of(case, folder)
        assert isinstance(tokenizer, HfTokenizer)
        self.tokenizer = tokenizer
        self.written: WrittenCalls = tokenizer.written_calls
        vocabulary = tokenizer.vocabulary()
        self._tokens = new_tokenizer(vocabulary)
        self._special = frozenset(vocabulary.special) - vocabulary.eos_token_ids
        self._bytes = vocabulary.tokens
        self._prompt_ids = tokenizer.render(ChatPrompt((ChatMessage(Role.USER, "?"),))).token_ids
        parameters = self.written.parameters
        closes = (
            (parameters.close, parameters.after_string, parameters.before_value, self.written.closing)
            if parameters
            else ()
        )
        self._closes = [close.encode() for close in (*closes, '"', "}", "]") if close]

    def grammar(self, tool: ToolSpec) -> Grammar:
        return tool_call_grammar(self.written, (tool,), self.tokenizer.special_tokens, must_call=True, max_calls=1)

    def walk(self, tool: ToolSpec, draw: random.Random, max_tokens: int) -> list[int] | None:
        """A call; None for one that did not end. Raises InvalidRequest for what no grammar states."""
        matcher = new_matcher(self._tokens, rendered(self.grammar(tool)))
        if matcher.is_error():
            raise InvalidRequest(f"cannot be enforced: {matcher.get_error()}", param="tools")
        ids, said = list[int](), b""
        for _ in range(max_tokens):
            mask = matcher.compute_bitmask()
            assert not matcher.is_error(), matcher.get_error()
            if matcher.is_accepting():
                return ids
            allowed = [at * 8 + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1]
            wanted = self._rest_of_end(said)
            hurried = [id for id in allowed if id in self._special or wanted.startswith(self._bytes[id] or b"-")]
            token_id = draw.choice(hurried if hurried and draw.random() < _HURRY else allowed)
            matcher.consume_token(token_id)
            ids.append(token_id)
            said = b"" if token_id in self._special else (said + self._bytes[token_id])[-64:]
        return None

    def takes(self, grammar: Grammar, text: str) -> bool:
        """Whether a model held to it may write this and end there."""
        return takes(self._tokens, grammar, self.tokenizer.encode(text).token_ids)

    def call_of_text(self, name: str, key: str, value: str) -> str:
        """A call with one string, as the family is declared to write it."""
        how, parameters = self.written, self.written.parameters
        if parameters is None:
            arguments = json.dumps({key: value}, ensure_ascii=False)
        elif parameters.values is Values.RAW:
            before, after = parameters.before_string or parameters.before_value, parameters.after_string
            arguments = f"{parameters.open}{key}{before}{value}{after or parameters.close}"
        else:
            quoted = (
                f"{parameters.quote}{value}{parameters.quote}"
                if parameters.quote
                else json.dumps(value, ensure_ascii=False)
            )
            arguments = f"{key}{parameters.before_value}{quoted}"
        number = f"{how.number}0" if how.number else ""
        inside = f"{how.opening}{name}{number}{how.before_arguments}{arguments}{how.closing}"
        return f"{how.first}{how.mark}{inside}{how.last}"

    def read(self, token_ids: Sequence[int], tools: Sequence[ToolSpec]) -> Told:
        prompt = ChatPrompt((ChatMessage(Role.USER, "?"),), tuple(tools))
        parser = self.tokenizer.output_parser(prompt, self._prompt_ids, numbered_ids())
        fed = [delta for token_id in token_ids for delta in parser.feed(token_id)]
        return told([*fed, *parser.finish()])

    def _rest_of_end(self, said: bytes) -> bytes:
        """What is left of the end that has come furthest."""
        begun = [next(n for n in range(len(close) - 1, -1, -1) if said.endswith(close[:n])) for close in self._closes]
        furthest = max(range(len(begun)), key=begun.__getitem__)
        return self._closes[furthest][begun[furthest] :]


def writing_models(folder: Path) -> Callable[[str], WritingModel]:
    """By family, made once each."""

    @cache
    def of(family: str) -> WritingModel:
        case = next(case for case in TRANSCRIPTS.values() if case.family == family)
        return WritingModel(replace(case, prompt_end=case.prompt_end.removesuffix("<think>\n")), folder / family)

    return of
