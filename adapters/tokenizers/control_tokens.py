"""The separation of client text from the control tokens that a chat template writes.

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
from adapters.tokenizers.text_codec import TextEncoder, longest_of
from domain.id_row import IdRow
from domain.printable import printable
from domain.request.chat import ChatMessage, Role
from domain.request.request import ChatPrompt

_FIRST_MARK, _MAX_MARKS = 0xD800, 1024
_PRIVATE = range(0x100000, 0x10FFFE)
_REPLACE = re.compile(r"""\breplace\(\s*('[^']*'|"[^"]*")\s*,\s*((?P<text>'[^']*'|"[^"]*")|(?P<name>\w+_token\b))""")
_PIECE_CHARS = 2**16
_MIN_CHARS = 2
"""A single character is no markup that a client could be prevented from writing."""


class ControlTokens:
    """The control tokens of one tokenizer. Any thread.

    `controls`: their texts. `in_answers`: those that the content of an assistant's message may spell, because templates
    look for them there: the tags of its reasoning, unless they are special tokens.
    """

    def __init__(self, rust: RustTokenizer, controls: Iterable[str], in_answers: Collection[str] = ()) -> None:
        added = rust.get_added_tokens_decoder().values()
        self._rust = rust
        self._special = [token.content for token in added if token.special and token.content.strip()]
        self._controls = frozenset(text for text in controls if len(text) >= _MIN_CHARS)
        self.kept = self._controls.intersection(in_answers).difference(self._special)
        self._found = _pattern(self._controls)
        self._found_in_answers = _pattern(self._controls - self.kept)
        self._any_added = _pattern({token.content for token in added})
        self._max_chars = max(map(len, self._controls), default=0)
        firsts = sorted({text[0] for text in self._controls})[:_MAX_MARKS]
        self.marks = {first: chr(_FIRST_MARK + at) for at, first in enumerate(firsts)}

    def written_for_text(self, source: str) -> str:
        """Returns the way in which a template's source makes control tokens of text; empty if none is found."""
        for match in _REPLACE.finditer(source):
            if match["name"] or self._found.search(match["text"] or ""):
                return f"the chat template replaces text by one: {printable(match[0])}"
        return ""

    def are_in(self, prompt: ChatPrompt) -> bool:
        """Returns True if a string of the prompt spells a control token."""
        tools = [[tool.name, tool.description, tool.parameters] for tool in prompt.tools]
        return any(map(self._are_in_message, prompt.messages)) or any(
            map(self.are_spelled, strings_of([tools, prompt.template_kwargs]))
        )

    def are_spelled(self, text: str, *, in_answer: bool = False) -> bool:
        """Searches a long text in pieces: the interpreter's lock is held for each."""
        found = self._found_in_answers if in_answer else self._found
        starts = range(0, len(text), _PIECE_CHARS)
        return any(found.search(text, at, at + _PIECE_CHARS + self._max_chars) for at in starts)

    def unmarked(self, text: str) -> str:
        for first, mark in self.marks.items():
            text = text.replace(mark, first)
        return text

    def encode(self, text: str, max_tokens: int | None = None, owner: str = "") -> IdRow:
        """Encode a rendering of marked strings. Raises PromptTooLong."""
        ids = self._ids
        encoded = self._encoder.encode(self._named(text), max_tokens=max_tokens, owner=owner)
        return IdRow([ids.get(id, id) for id in encoded])

    def defect(self) -> str:
        """Returns why text may still act as a control token; empty if it cannot. Raises what the libraries do, and
        ValueError if nothing can be kept apart."""
        written = [f"a {text}b{text}" for text in sorted(self._controls)]
        own = self._rust.encode_batch(written, add_special_tokens=False)
        if any(self.encode(text) != encoding.ids for text, encoding in zip(written, own, strict=True)):
            raise ValueError("it does not find control tokens under other names")
        ids = {text: self._rust.token_to_id(text) for text in sorted(self._controls)}
        unknown = self._twin.encode_batch([chr(_PRIVATE[-1])], add_special_tokens=False)[0].ids
        spelled = [text for text in self._special if len(text) < _MIN_CHARS]
        for tokenizer, change in ((self._twin, str), (self._rust, str.upper), (self._rust, _full_width)):
            changed = [change(text) for text in ids]
            read = tokenizer.encode_batch(changed, add_special_tokens=False)
            for (text, id), other, one in zip(ids.items(), changed, read, strict=True):
                is_itself = tokenizer is self._rust and other == text
                spelled += [other] if id in one.ids and id not in unknown and not is_itself else []
        return f"the tokenizer reads {', '.join(spelled[:8])} in a message as control tokens" if spelled else ""

    def _are_in_message(self, message: ChatMessage) -> bool:
        if self.are_spelled(message.content, in_answer=message.role is Role.ASSISTANT):
            return True
        texts = [message.reasoning, message.name, message.tool_call_id]
        for call in message.tool_calls:
            texts += (call.id, call.name, call.arguments)
            if "\\u" in call.arguments:
                texts += strings_of(_json(call.arguments))
        return any(text and self.are_spelled(text) for text in texts)

    def _named(self, text: str) -> str:
        names = self._names
        return self.unmarked(self._any_added.sub(lambda match: names.get(match[0], match[0]), text))

    @cached_property
    def _names(self) -> dict[str, str]:
        """Returns random names, so that no client can write one."""
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


class ContentMarks:
    """The marks in the strings of one prompt, which all its renderings share. One thread."""

    def __init__(self, controls: ControlTokens) -> None:
        self.controls = controls
        self._known: dict[tuple[str, bool], str] = {}

    def of(self, value: Any) -> Any:
        """Returns a JSON value with marks in the strings that spell a control token."""
        if isinstance(value, str):
            return self._of_text(value, in_answer=False)
        if isinstance(value, Mapping):
            return {self.of(key): self.of(inner) for key, inner in cast("Mapping[str, Any]", value).items()}
        if isinstance(value, list | tuple):
            return [self.of(inner) for inner in cast("Sequence[Any]", value)]
        return value

    def of_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a message, in the shape that templates read, with marks in its strings."""
        others = {key: self.of(value) for key, value in message.items() if key != "content"}
        content = message["content"]
        if isinstance(content, str):
            return {**others, "content": self._of_text(content, in_answer=message["role"] == Role.ASSISTANT.value)}
        return {**others, "content": self.of(content)}

    def _of_text(self, text: str, *, in_answer: bool) -> str:
        key = text, in_answer
        if key not in self._known:
            is_spelled = self.controls.are_spelled(text, in_answer=in_answer)
            self._known[key] = self._marked(text, in_answer=in_answer) if is_spelled else text
        return self._known[key]

    def _marked(self, text: str, *, in_answer: bool) -> str:
        marks = self.controls.marks
        for first, mark in marks.items():
            text = text.replace(first, mark)
        for tag in self.controls.kept if in_answer else ():
            text = text.replace(self._marked(tag, in_answer=False), tag)
        return text


def control_texts(rust: RustTokenizer, written: str) -> frozenset[str]:
    """Returns the texts of a tokenizer's control tokens: special tokens, and other added ones that its chat template
    writes or tests for. `written`: the template's source and what it rendered. White space is text."""
    added = rust.get_added_tokens_decoder().values()
    found = (token.content for token in added if token.special or token.content in written)
    return frozenset(text for text in found if text.strip())


def _pattern(texts: Collection[str]) -> "re.Pattern[str]":
    return re.compile(longest_of(texts) if texts else "(?!)")


def _full_width(text: str) -> str:
    """Returns the other characters that NFKC maps to the same one."""
    return text.translate({code: code + 0xFEE0 for code in range(0x21, 0x7F)})


def strings_of(value: Any) -> Iterator[str]:
    """Yields all strings of a JSON value, keys too, and an empty one for everything else. Any order, any depth."""
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
