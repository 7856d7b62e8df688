"""The trained tokenizer as a function, with the short texts that chats repeat remembered."""

from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from training.text.corpus import TOKENIZER

_LONGEST_KEPT = 60
_MOST_KEPT = 200_000


class Encoder:
    """Call it with a text; gives token ids. One process."""

    def __init__(self, file: Path | None = None) -> None:
        self._tokenizer = Tokenizer.from_file(str(file or TOKENIZER / "tokenizer.json"))
        self._kept: dict[str, list[int]] = {}
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        self.turn_end: int = self._tokenizer.token_to_id("<|im_end|>")
        self.text_end: int = self._tokenizer.token_to_id("<|endoftext|>")

    def __call__(self, text: str) -> Sequence[int]:
        ids = self._kept.get(text)
        if ids is None:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
            if len(text) < _LONGEST_KEPT:
                if len(self._kept) > _MOST_KEPT:
                    self._kept.clear()
                self._kept[text] = ids
        return ids


__all__ = ("Encoder",)
