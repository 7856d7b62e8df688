"""The separation of client text from the control tokens that a chat template writes.

A tokenizer reads `<|im_end|>` as one control token wherever it stands, so a web page that an agent reads could end the
tool's turn and speak as the system. Templates also make such texts of pieces: they write `<` and `>` around a key of a
schema, delete a word, join two strings. So the rendering decides. It is encoded as it is where no string of the prompt
spells a control token, and where it holds the same control tokens as the skeleton: the prompt with every string
replaced by neutral text. For other prompts,

    strings     all their characters that occur in control tokens become marks: lone surrogates, which no valid text has
    rendering   the template copies, trims and cuts marks as it does other characters
    encoding    control tokens that are left in the text are the template's: they take the names that a second
                tokenizer, the twin, has for them, and marks become characters again

The twin has the same model, normalizer, pre-tokenizer and added tokens, but for the names of control tokens: random
private characters. It encodes what a client wrote as text, in its place, and everything else as the tokenizer does: the
ids of a text without such strings are the same. Every name is as long as its token, so that positions stay.

Templates act on texts, so some stay in both renderings: what a template tests for, such as `/no_think`, unless it could
be the end or the beginning of a control token; and single words, such as types and names of arguments, unless they are
a part of one. A word that a client gives the template as its argument stays too.
"""

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from adapters.tokenizers.library import RustTokenizer, new_rust_tokenizer
from adapters.tokenizers.text_codec import EncodedText, TextEncoder, longest_of
from domain.id_row import IdRow
from domain.printable import printable
from domain.request.chat import Role

_FIRST_MARK, _MAX_MARKS = 0xD800, 0x7FF
_NEUTRAL = "\udfff"
_LITERAL = r"""('[^'\n]+'|"[^"\n]+")"""
_TESTED = re.compile(rf"(?:\(|[=!]=)\s*{_LITERAL}|{_LITERAL}\s+(?:not\s+)?in\b")
_WORD = re.compile(r"[0-9A-Za-z_]*")
_PRIVATE = range(0x100000, 0x10FFFE)
_REPLACE = re.compile(r"""\breplace\(\s*('[^']*'|"[^"]*")\s*,\s*((?P<text>'[^']*'|"[^"]*")|(?P<name>\w+_token\b))""")
_PIECE_CHARS = 2**16
_CLIENT_VALUES = frozenset({"arguments", "parameters"})
_SERVER_VALUES = frozenset({"role", "type"})
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
        self._joined = "\0".join(self._controls).casefold()
        cases = "".join(f"{text}{text.lower()}{text.upper()}" for text in self._controls)
        alphabet = sorted({char for char in cases if not char.isspace()})
        if len(alphabet) > _MAX_MARKS:
            raise ValueError(f"its control tokens have more than {_MAX_MARKS} different characters")
        self._marks = {char: chr(_FIRST_MARK + at) for at, char in enumerate(alphabet)}
        self.keep(())

    def keep(self, own: Collection[str], source: str = "") -> None:
        """Leaves texts without marks from now on: the server's own, and those that a template's source tests for."""
        starts = {text[:end] for text in self._controls for end in range(1, len(text) + 1)}
        ends = {text[at:] for text in self._controls for at in range(len(text))}
        texts = set(own)
        for match in _TESTED.finditer(source):
            text = (match[1] or match[2])[1:-1]
            cuts = range(1, len(text) + 1)
            is_open = any(text[:cut] in ends or text[-cut:] in starts for cut in cuts)
            if not (is_open or self._found.search(text) or _WORD.fullmatch(text)):
                texts.add(text)
        self._kept_texts = {True: _separator(texts | self.kept), False: _separator(texts)}

    def written_for_text(self, source: str) -> str:
        """Returns the way in which a template's source makes control tokens of text; empty if none is found."""
        for match in _REPLACE.finditer(source):
            if match["name"] or self._found.search(match["text"] or ""):
                return f"the chat template replaces text by one: {printable(match[0])}"
        return ""

    def are_spelled(self, text: str, *, in_answer: bool = False) -> bool:
        """Searches a long text in pieces: the interpreter's lock is held for each."""
        found = self._found_in_answers if in_answer else self._found
        starts = range(0, len(text), _PIECE_CHARS)
        return any(found.search(text, at, at + _PIECE_CHARS + self._max_chars) for at in starts)

    def read_in(self, text: str) -> list[str]:
        """Returns the control tokens that the tokenizer reads in a text."""
        return [found for found in self._any_added.findall(text) if found in self._controls]

    def is_word(self, text: str) -> bool:
        """Returns True for a word that is no part of a control token."""
        return _WORD.fullmatch(text) is not None and not self.is_part(text)

    def is_part(self, text: str) -> bool:
        """Returns True for a text that a template could make a control token of by what it writes around it."""
        text = text.strip()
        return 0 < len(text) <= self._max_chars and text.casefold() in self._joined

    def pieces(self, text: str, *, in_answer: bool) -> list[str]:
        """Returns the parts of a text: those at odd places stay."""
        is_tag = in_answer and text.strip() in self.kept
        return [text] if self.is_part(text) and not is_tag else self._kept_texts[in_answer].split(text)

    def marked(self, text: str) -> str:
        for char, mark in self._marks.items():
            text = text.replace(char, mark)
        return text

    def unmarked(self, text: str) -> str:
        for char, mark in self._marks.items():
            text = text.replace(mark, char)
        return text

    def encode_parts(self, text: str, max_tokens: int | None = None, owner: str = "") -> EncodedText:
        """Encode a rendering of marked strings. Raises PromptTooLong."""
        names = self._names
        named = self._any_added.sub(lambda match: names.get(match[0], match[0]), text)
        return self.encode_text(self.unmarked(named), max_tokens, owner)

    def encode_text(self, text: str, max_tokens: int | None = None, owner: str = "") -> EncodedText:
        """Encode a client's text, in which nothing is a control token. Raises PromptTooLong."""
        ids = self._ids
        encoded = self._encoder.encode(text, max_tokens=max_tokens, owner=owner)
        return encoded._replace(ids=IdRow([ids.get(id, id) for id in encoded.ids]))

    def defect(self) -> str:
        """Returns why text may still act as a control token; empty if it cannot. Raises what the libraries do, and
        ValueError if nothing can be kept apart."""
        written = [f"a {text}b{text}" for text in sorted(self._controls)]
        own = self._rust.encode_batch(written, add_special_tokens=False)
        if any(self.encode_parts(text).ids != encoding.ids for text, encoding in zip(written, own, strict=True)):
            raise ValueError("it does not find control tokens under other names")
        ids = {text: self._rust.token_to_id(text) for text in sorted(self._controls)}
        (none,) = self._twin.encode_batch([chr(_PRIVATE[-1])], add_special_tokens=False)  # BERT drops the character
        unknown = {*none.ids, ids.get(str(getattr(self._rust.model, "unk_token", None)))}
        spelled = [text for text in self._special if len(text) < _MIN_CHARS]
        for tokenizer, change in ((self._twin, str), (self._rust, str.upper), (self._rust, _full_width)):
            changed = [change(text) for text in ids]
            read = tokenizer.encode_batch(changed, add_special_tokens=False)
            for (text, id), other, one in zip(ids.items(), changed, read, strict=True):
                is_itself = tokenizer is self._rust and other == text
                spelled += [other] if id in one.ids and id not in unknown and not is_itself else []
        return f"the tokenizer reads {', '.join(spelled[:8])} in a message as control tokens" if spelled else ""

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
        """Returns a JSON value with its strings changed, keys too: one frame a level, as deep as templates go."""
        if isinstance(value, str):
            return self._of_text(value)
        if isinstance(value, Mapping):
            inner = cast("Mapping[str, Any]", value)
            return dict(zip(map(self.of, inner), map(self.of, inner.values()), strict=True))
        if isinstance(value, list | tuple):
            return list(map(self.of, cast("Sequence[Any]", value)))
        return value

    def of_shape(self, value: Any, *, in_answer: bool = False) -> Any:
        """Returns a message or a tool, in the shape that templates read, with the client's strings changed."""
        if isinstance(value, list):
            return list(map(self.of_shape, cast("Sequence[Any]", value)))
        if not isinstance(value, Mapping):
            return self._of_text(value, in_answer=in_answer) if isinstance(value, str) else value
        shape = cast("Mapping[str, Any]", value)
        is_answer = shape.get("role") == Role.ASSISTANT.value
        changed = dict(shape)
        for key, inner in shape.items():
            if key in _CLIENT_VALUES:
                changed[key] = self.of(inner)
            elif key not in _SERVER_VALUES:
                changed[key] = self.of_shape(inner, in_answer=is_answer and key == "content")
        return changed

    def of_argument(self, value: Any) -> Any:
        """Returns a template argument. A word stays: it is a choice that the template offers."""
        return value if isinstance(value, str) and _WORD.fullmatch(value) else self.of(value)

    def _of_text(self, text: str, *, in_answer: bool = False) -> str:
        key = text, in_answer
        if key not in self._known:
            self._known[key] = self._changed(text, in_answer=in_answer)
        return self._known[key]

    def _changed(self, text: str, *, in_answer: bool) -> str:
        if self.controls.is_word(text):
            return text
        pieces = self.controls.pieces(text, in_answer=in_answer)
        return "".join(piece if at % 2 else self._replaced(piece) for at, piece in enumerate(pieces))

    def _replaced(self, piece: str) -> str:
        return self.controls.marked(piece)


class Skeleton(ContentMarks):
    """Neutral texts in place of the strings of one prompt. `spells`: one of them spells a control token."""

    spells = False

    def _changed(self, text: str, *, in_answer: bool) -> str:
        self.spells = self.spells or self.controls.are_spelled(text, in_answer=in_answer)
        return super()._changed(text, in_answer=in_answer)

    def _replaced(self, piece: str) -> str:
        return f"{_NEUTRAL}{len(self._known)}{_NEUTRAL}" if piece.strip() else piece


def control_texts(rust: RustTokenizer, written: str) -> frozenset[str]:
    """Returns the texts of a tokenizer's control tokens: special tokens, and other added ones that its chat template
    writes or tests for. `written`: the template's source and what it rendered. White space is text."""
    added = rust.get_added_tokens_decoder().values()
    found = (token.content for token in added if token.special or token.content in written)
    return frozenset(text for text in found if text.strip())


def _pattern(texts: Collection[str]) -> "re.Pattern[str]":
    return re.compile(longest_of(texts) if texts else "(?!)")


def _separator(texts: Collection[str]) -> "re.Pattern[str]":
    return re.compile(f"({_pattern(texts).pattern})")


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
