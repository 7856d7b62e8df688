"""Client text kept apart from the control tokens that a chat template writes.

A tokenizer reads `<|im_end|>` as one control token wherever it stands, so a web page that an agent reads could end the
tool's turn and speak as the system. Where a string of a prompt spells a control token, therefore,

    strings     their characters that may begin one become marks: lone surrogates, which no valid text has
    rendering   the template copies, trims and cuts marks as it does other characters
    encoding    control tokens that are left in the text are the template's: they take the names that a second
                tokenizer, the twin, has for them, and marks become characters again

The twin has the same model, normalizer, pre-tokenizer and added tokens, but for the names of control tokens: random
private characters. It encodes what a client wrote as text, in its place, and everything else as the tokenizer does: the
ids of a text without such strings are the same. Every name is as long as its token, so that positions stay.

Prompts whose strings spell none, nearly all, are rendered and encoded as they are.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from adapters.tokenizers.library import RustTokenizer, new_rust_tokenizer
from adapters.tokenizers.text_codec import EncodedText, TextEncoder
from adapters.tokenizers.text_cuts import longest_of
from domain.chat import ChatMessage, Role
from domain.id_row import IdRow
from domain.request import ChatPrompt
from domain.shown import shown

_FIRST_MARK, _MAX_MARKS = 0xD800, 1024
_PRIVATE = range(0x100000, 0x10FFFE)
_REPLACE = re.compile(r"""\breplace\(\s*('[^']*'|"[^"]*")\s*,\s*((?P<text>'[^']*'|"[^"]*")|(?P<name>\w+_token\b))""")
_MIN_CHARS = 2
"""A single character is no markup that a client could be kept from writing."""


class ControlTokens:
    """One tokenizer's. Any thread.

    `controls`: what they spell. `in_answers`: those that the content of an assistant's message may spell, because
    templates look for them there: the tags of its reasoning.
    """

    def __init__(self, rust: RustTokenizer, controls: Iterable[str], in_answers: Collection[str] = ()) -> None:
        self._rust = rust
        self._controls = frozenset(text for text in controls if len(text) >= _MIN_CHARS)
        in_answers = self._controls.intersection(in_answers)
        firsts = sorted({text[0] for text in self._controls})[:_MAX_MARKS]
        self._marks = {first: chr(_FIRST_MARK + at) for at, first in enumerate(firsts)}
        self._found = _pattern(self._controls)
        self._found_in_answers = _pattern(self._controls - in_answers)
        beginning = f"[{''.join(map(re.escape, firsts))}]" if firsts else "(?!)"
        self._beginning = re.compile(beginning)
        kept = f"(?!{longest_of(in_answers)})" if in_answers else ""
        self._beginning_in_answers = re.compile(kept + beginning)
        self._any_added = _pattern({token.content for token in rust.get_added_tokens_decoder().values()})

    def written_for_text(self, source: str) -> str:
        """Why a template's source makes control tokens of text; empty if it is not known to."""
        for match in _REPLACE.finditer(source):
            if match["name"] or self._found.search(match["text"] or ""):
                return f"the chat template replaces text by one: {shown(match[0])}"
        return ""

    def are_in(self, prompt: ChatPrompt) -> bool:
        """Whether a string of the prompt spells a control token."""
        others = strings_of([[tool.name, tool.description, tool.parameters] for tool in prompt.tools])
        return (
            any(map(self._are_in_message, prompt.messages))
            or any(map(self._found.search, others))
            or any(map(self._found.search, strings_of(prompt.template_kwargs)))
        )

    def marked(self, value: Any) -> Any:
        """A JSON value, in the strings of which whatever may begin a control token is a mark."""
        if isinstance(value, str):
            return self._marked(value, self._found, self._beginning)
        if isinstance(value, Mapping):
            items = cast("Mapping[str, Any]", value).items()
            return {self.marked(key): self.marked(inner) for key, inner in items}
        if isinstance(value, list | tuple):
            return [self.marked(inner) for inner in cast("Sequence[Any]", value)]
        return value

    def marked_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message in the shape that templates read."""
        marked: dict[str, Any] = self.marked(message)
        if message["role"] == Role.ASSISTANT.value and isinstance(content := message["content"], str):
            marked["content"] = self._marked(content, self._found_in_answers, self._beginning_in_answers)
        return marked

    def unmarked(self, text: str) -> str:
        for first, mark in self._marks.items():
            text = text.replace(mark, first)
        return text

    def encode(self, text: str, max_tokens: int | None = None, owner: str = "") -> EncodedText:
        """Encode a rendering of marked strings. Raises PromptTooLong."""
        encoded = self._encoder.encode(self._named(text), max_tokens=max_tokens, owner=owner)
        ids = self._ids
        return EncodedText(IdRow([ids.get(id, id) for id in encoded.ids]), encoded.spans)

    @cached_property
    def defect(self) -> str:
        """Why text may still act as a control token; empty if it cannot. Raises what the libraries do."""
        short = [token for token in self._special() if len(token) < _MIN_CHARS]
        plain = sorted(self._controls)
        unknown, *read = self._twin.encode_batch(
            [chr(_PRIVATE[-1]), *(f"a {text} b" for text in plain)], add_special_tokens=False
        )
        ids = {text: self._rust.token_to_id(text) for text in plain}
        spelled = [
            text
            for text, encoding in zip(plain, read, strict=True)
            if ids[text] in encoding.ids and ids[text] not in unknown.ids
        ]
        if short or spelled:
            shown = ", ".join([*short, *spelled][:8])
            return f"the tokenizer reads {shown} in a message as control tokens"
        written = [f"a {text}b{text}" for text in plain]
        own = self._rust.encode_batch(written, add_special_tokens=False)
        if any(self.encode(text).ids != encoding.ids for text, encoding in zip(written, own, strict=True)):
            return "the tokenizer does not find control tokens under other names"
        return ""

    def _are_in_message(self, message: ChatMessage) -> bool:
        content = self._found_in_answers if message.role is Role.ASSISTANT else self._found
        if content.search(message.content):
            return True
        texts = [message.reasoning, message.name, message.tool_call_id]
        for call in message.tool_calls:
            texts += (call.id, call.name, call.arguments)
            if "\\u" in call.arguments:
                texts += strings_of(_json(call.arguments))
        return any(text and self._found.search(text) for text in texts)

    def _marked(self, text: str, found: "re.Pattern[str]", beginning: "re.Pattern[str]") -> str:
        return beginning.sub(lambda match: self._marks[match[0]], text) if found.search(text) else text

    def _named(self, text: str) -> str:
        names = self._names
        return self.unmarked(self._any_added.sub(lambda match: names.get(match[0], match[0]), text))

    def _special(self) -> list[str]:
        return [
            token.content
            for token in self._rust.get_added_tokens_decoder().values()
            if token.special and token.content.strip()
        ]

    @cached_property
    def _names(self) -> dict[str, str]:
        """Random, so that no client can write one."""
        return {text: "".join(chr(secrets.choice(_PRIVATE)) for _ in text) for text in sorted(self._controls)}

    @cached_property
    def _twin(self) -> RustTokenizer:
        return new_rust_tokenizer(self._rust, self._names)

    @cached_property
    def _encoder(self) -> TextEncoder:
        return TextEncoder(self._twin)

    @cached_property
    def _ids(self) -> dict[int, int]:
        """Ids of the tokenizer by those of the twin, where they differ."""
        twin = self._twin.get_added_tokens_decoder()
        texts = {name: text for text, name in self._names.items()}
        ids = {id: self._rust.token_to_id(texts.get(token.content, token.content)) for id, token in twin.items()}
        return {id: own for id, own in ids.items() if own is not None and own != id}


def control_texts(rust: RustTokenizer, written: str) -> frozenset[str]:
    """What the control tokens of a tokenizer spell: special tokens, and other added ones that its chat template writes
    or looks for. `written`: the template's source and what it rendered. White space is text."""
    added = rust.get_added_tokens_decoder().values()
    found = (token.content for token in added if token.special or token.content in written)
    return frozenset(text for text in found if text.strip())


def _pattern(texts: Collection[str]) -> "re.Pattern[str]":
    return re.compile(longest_of(texts) if texts else "(?!)")


def strings_of(value: Any) -> Iterator[str]:
    """Yield all strings of a JSON value, keys too, and an empty one for everything else. Any order, any depth."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        yield one if isinstance(one, str) else ""
        if isinstance(one, Mapping):
            items = cast("Mapping[str, Any]", one)
            waiting += (*items.keys(), *items.values())
        elif isinstance(one, list | tuple):
            waiting += cast("Sequence[Any]", one)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


__all__ = ("ControlTokens", "control_texts", "strings_of")
