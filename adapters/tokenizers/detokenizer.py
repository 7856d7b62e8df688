"""An incremental detokenizer for any tokenizer.

It decodes the tokens of the last text that it returned together with the new ones, and returns the difference: some
decoders write a token by its neighbours. The texts, joined, are the decoded text of all tokens without special ones.
The one exception is output that is not valid UTF-8: decoders of byte-fallback vocabularies replace whole runs of bytes
there, also the characters in them that were complete and have been returned here.

The library's own `DecodeStream` is not used: it raises on such bytes, and has no end that returns unfinished ones.
"""

from collections.abc import Callable, Sequence

MAX_CHARACTER_TOKENS = 8
"""More tokens than one character can be split over: four bytes, and the word mark before it."""

_MAX_OPEN_TOKENS = 3
"""The most tokens that can be the beginning of one unfinished character."""

_PROMPT_TOKENS = 32
"""Tokens at the end of a prompt that are decoded before those that follow it."""


class IncrementalDetokenizer:
    """Linear in the tokens, since the window is bounded. One owner.

    With `prompt_ids` the text continues the prompt's: its leading space is kept, and bytes left over at the end of the
    prompt complete a character with the first new ones.
    """

    def __init__(
        self, decode: Callable[[Sequence[int]], str], special_ids: frozenset[int], prompt_ids: Sequence[int] = ()
    ) -> None:
        """`decode` skips special tokens, which are those of `special_ids`."""
        self._decode = decode
        self._special_ids = special_ids
        self._last: list[list[int]] = []
        self._pending: list[int] = []
        for token_id in prompt_ids[-_PROMPT_TOKENS:]:
            self.feed(token_id)

    @property
    def _context(self) -> list[int]:
        """The last tokens whose text was returned, from the beginning of a character on."""
        return [token_id for tokens in self._last for token_id in tokens]

    def feed(self, token_id: int) -> str:
        if token_id in self._special_ids:
            return ""
        self._pending.append(token_id)
        whole = self._decode([*self._context, *self._pending])
        if not whole.endswith("\ufffd"):
            return self._take(len(self._pending), whole)
        if len(self._pending) < MAX_CHARACTER_TOKENS:
            return ""
        return self._take_settled(whole)

    def flush(self) -> str:
        return self._take(len(self._pending), self._decode([*self._context, *self._pending]))

    def _take_settled(self, whole: str) -> str:
        """Returns bytes that form no character and that later tokens can no longer complete."""
        for count in range(len(self._pending) - _MAX_OPEN_TOKENS, 0, -1):
            text = self._decode([*self._context, *self._pending[:count]])
            if whole.startswith(text):
                return self._take(count, text)
        return ""

    def _take(self, count: int, text: str) -> str:
        """Move `count` pending tokens to the context, and return their text. `text`: of the context and of them."""
        taken, before = self._pending[:count], self._decode(self._context)
        if taken:
            self._last = [*self._last, taken][-MAX_CHARACTER_TOKENS:]
            del self._pending[:count]
        return text[len(before) :] if text.startswith(before) else self._decode(taken)
