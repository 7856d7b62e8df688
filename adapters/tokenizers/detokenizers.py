"""Incremental detokenizers: the texts they return, joined, are the decoded text of all their tokens.

Special tokens contribute nothing. For output of a model that is valid UTF-8 the joined text equals the tokenizer's
own `decode(ids, skip_special_tokens=True)` character for character, leading space included. The one difference is
wanted: where a byte-fallback vocabulary emits bytes that form no character, `decode` turns the whole run of bytes into
U+FFFD, also the characters in it that were complete and have been shown; here only the bytes that never became one.

A text that follows a prompt is decoded as its continuation: no leading space is dropped, and bytes left over at the
prompt's end complete a character with the first new ones.
"""

import codecs
from collections.abc import Callable, Sequence

from adapters.tokenizers.token_bytes import TokenBytes

_MAX_CHARACTER_TOKENS = 8
"""More tokens than one character can be split over: four bytes, and the word mark before it."""

_MAX_OPEN_TOKENS = 3
"""The most tokens that can be the beginning of one unfinished character."""


class ByteDetokenizer:
    """A detokenizer for tokens with bytes of their own. Constant time a token; one owner."""

    def __init__(self, tokens: TokenBytes, special_ids: frozenset[int], prompt_ids: Sequence[int] = ()) -> None:
        self._tokens = tokens
        self._special_ids = special_ids
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first_token = True
        self._num_to_strip = tokens.leading.count
        for token_id in _last_visible(prompt_ids, special_ids):
            self._utf8.decode(tokens.of(token_id))
            self._is_first_token = False
            self._num_to_strip = 0

    def feed(self, token_id: int) -> str:
        data = self._tokens.of(token_id)
        if not data or token_id in self._special_ids:
            return ""
        if self._is_first_token:
            self._is_first_token = False
            data = self._tokens.of_first(token_id)
        text = self._utf8.decode(data)
        return self._stripped(text) if self._num_to_strip else text

    def flush(self) -> str:
        return self._stripped(self._utf8.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while text and self._num_to_strip:
            if text[0] != self._tokens.leading.character:
                self._num_to_strip = 0
            else:
                self._num_to_strip -= 1
                text = text[1:]
        return text


class WindowDetokenizer:
    """A detokenizer for any tokenizer: decodes a short window of recent tokens twice and takes the difference.

    One owner. `decode` must skip special tokens. The window is bounded, so time is linear in the tokens.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], special_ids: frozenset[int], prompt_ids: Sequence[int] = ()
    ) -> None:
        self._decode = decode
        self._special_ids = special_ids
        self._context = _last_visible(prompt_ids, special_ids)
        self._pending: list[int] = []

    def feed(self, token_id: int) -> str:
        if token_id in self._special_ids:
            return ""
        self._pending.append(token_id)
        whole = self._decode([*self._context, *self._pending])
        if not whole.endswith("\ufffd"):
            return self._take(len(self._pending), whole)
        if len(self._pending) < _MAX_CHARACTER_TOKENS:
            return ""
        return self._take_settled(whole)

    def flush(self) -> str:
        return self._take(len(self._pending), self._decode([*self._context, *self._pending]))

    def _take_settled(self, whole: str) -> str:
        """Show bytes that form no character and that later tokens can no longer complete."""
        for count in range(len(self._pending) - _MAX_OPEN_TOKENS, 0, -1):
            text = self._decode([*self._context, *self._pending[:count]])
            if whole.startswith(text):
                return self._take(count, text)
        return ""

    def _take(self, count: int, text: str) -> str:
        """Move `count` pending tokens, with which the window reads `text`, to the context."""
        shown = text[len(self._decode(self._context)) :]
        self._context = [*self._context, *self._pending[:count]][-_MAX_CHARACTER_TOKENS:]
        del self._pending[:count]
        return shown


def _last_visible(token_ids: Sequence[int], special_ids: frozenset[int]) -> list[int]:
    """Return the last few visible tokens: enough for the bytes of an unfinished character."""
    found: list[int] = []
    for token_id in reversed(token_ids):
        if token_id not in special_ids:
            found.append(token_id)
            if len(found) == _MAX_CHARACTER_TOKENS:
                break
    return found[::-1]
