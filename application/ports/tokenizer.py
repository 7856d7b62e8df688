"""Text to tokens and back, for one model.

Threading: all methods are safe from any thread except a Detokenizer, which belongs to one caller. Encoding and
rendering may take milliseconds to seconds on long prompts: call them off the event loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from domain.fork_point import ForkKind, ForkPoint
from domain.model_card import ModelSource
from domain.request import ChatPrompt


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """Token ids ready for the engine, and the fork points found in them, ascending, one a position."""

    token_ids: tuple[int, ...]
    fork_points: tuple[ForkPoint, ...] = ()


class Detokenizer(Protocol):
    """Incremental, UTF-8 safe: a character split over tokens appears once, when it is complete."""

    def feed(self, token_id: int) -> str:
        """Add a token; return the text that became certain."""
        ...

    def flush(self) -> str:
        """End of stream: the rest, with U+FFFD for bytes that never became a character."""
        ...


class Tokenizer(Protocol):
    """One model's tokenizer and chat template."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id it can produce."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def has_chat_template(self) -> bool: ...

    def encode(self, text: str) -> EncodedPrompt:
        """Encode raw text as a completion prompt, with the special tokens the model expects at its start."""
        ...

    def render(self, prompt: ChatPrompt) -> EncodedPrompt:
        """Apply the chat template with the generation prompt. Raises TemplateFailed, naming what it refused."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of a run of tokens, special tokens included."""
        ...

    def detokenizer(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """A fresh incremental detokenizer for text that follows `prompt_ids`; special tokens are left out."""
        ...


class TokenizerLoader(Protocol):
    """Loads tokenizers. Any thread; blocking."""

    def load(self, source: ModelSource) -> Tokenizer:
        """Raises ModelLoadFailed."""
        ...


__all__ = ("Detokenizer", "EncodedPrompt", "ForkKind", "ForkPoint", "Tokenizer", "TokenizerLoader")
