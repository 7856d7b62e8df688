"""Text to tokens and back, and tokens to an answer's content, for one model.

Threading: all methods are safe from any thread except those of a Detokenizer or an OutputParser, which belong to one
caller. Encoding and rendering may take milliseconds to seconds on long prompts: call them off the event loop. They let
other threads run meanwhile, as far as the library allows, and need some 200 bytes a character: bound how many long
texts are encoded at a time.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from application.ports.vision import ImageRows
from domain.id_row import IdRow
from domain.models.model_card import ModelSource, Vocabulary
from domain.output.family import WrittenCalls
from domain.prefix.prompt_content import EncodedPrompt, ForkKind, ForkPoint
from domain.request.grammar import Reasoning
from domain.request.reasoning_budget import ReasoningMarks
from domain.request.request import ChatPrompt
from domain.request.stream import ContentDelta


class OutputParser(Protocol):
    """Reads one answer's tokens as reasoning, text and tool calls while they are generated. Sans-io; one owner.

    Constant time a token on average, whatever a model writes. The deltas, joined, are the same for any split of one
    answer's text over tokens. They carry no token ids and no log probabilities: a token may end what several tokens
    before it began, or say nothing yet.

    Nothing is lost: text that looks like a call and is none comes back as text. Once a call has been named, all that
    the model writes for it comes as its arguments, whether or not that is valid JSON or ever closed:
    `domain/output/schema_check` reports the faults of a call.
    """

    def feed(self, token_id: int) -> Sequence[ContentDelta]:
        """Adds a sampled token, special ones included. Returns the deltas that became certain."""
        ...

    def finish(self) -> Sequence[ContentDelta]:
        """Ends the answer and returns the deltas that were held back. `feed` must not be called afterwards."""
        ...


class PromptTooLong(Exception):
    """A text has more tokens than the caller's limit. `num_tokens`: their number; a lower bound if not `is_exact`,
    derived from the length of the text before it is encoded."""

    def __init__(self, num_tokens: int, *, is_exact: bool = True) -> None:
        super().__init__(f"{num_tokens} tokens")
        self.num_tokens = num_tokens
        self.is_exact = is_exact


def check_length(num_chars: int, max_token_chars: int, max_tokens: int | None) -> None:
    """Raises PromptTooLong, with the least number of tokens, for a text that cannot have `max_tokens` or fewer."""
    if max_tokens is not None and num_chars > max_tokens * max_token_chars:
        raise PromptTooLong(-(-num_chars // max_token_chars), is_exact=False)


@dataclass(frozen=True, slots=True)
class TemplateFeatures:
    """The parts of a conversation that a chat template shows to the model: tools, reasoning, and system messages after
    the first turn in their place and role. `source`: the template's own text."""

    tools: bool
    reasoning: bool
    late_system: bool
    source: str = field(default="", compare=False, repr=False)


class Detokenizer(Protocol):
    """An incremental, UTF-8 safe detokenizer: a character split over tokens appears once, when it is complete."""

    def feed(self, token_id: int) -> str:
        """Adds a token; returns the text that became certain."""
        ...

    def flush(self) -> str:
        """Ends the stream and returns the rest, with U+FFFD for bytes that never became a character."""
        ...


class Tokenizer(Protocol):
    """One model's tokenizer and chat template."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest token id it can produce."""
        ...

    @property
    def max_token_chars(self) -> int:
        """No token covers more characters of a text."""
        ...

    @property
    def eos_token_ids(self) -> frozenset[int]: ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Ids of the tokens that no text spells, by name."""
        ...

    @property
    def has_token_bytes(self) -> bool:
        """True if every token has bytes of its own, so that a grammar can constrain an answer."""
        ...

    def vocabulary(self) -> Vocabulary | None:
        """Returns the tokens for constraining answers on the token side; None without `has_token_bytes`. Takes tenths
        of a second for a large vocabulary."""
        ...

    @property
    def note(self) -> str:
        """A warning for the operator that is reported when the model is loaded; empty for none."""
        ...

    def encode(self, text: str, max_tokens: int | None = None, salt: str = "") -> EncodedPrompt:
        """Encode raw text as a completion prompt, with the special tokens the model expects at its start.

        Encodings are cached by `salt`, so that no timing reveals another tenant's texts. Raises PromptTooLong beyond
        `max_tokens`, before encoding where the length alone proves it.
        """
        ...

    def render(
        self, prompt: ChatPrompt, max_tokens: int | None = None, salt: str = "", images: ImageRows | None = None
    ) -> EncodedPrompt:
        """Apply the chat template with the generation prompt, or up to the end of the last message's content where the
        prompt continues it. `images`: the tokens of all images in it; None for a prompt without images. Text of clients
        is encoded as text, also where it spells a control token or an image's placeholder, but for the tags of
        reasoning in an assistant's content (`note` says where that fails). `salt` as in `encode`. Raises
        TemplateFailed, naming the message or argument, also where the template shows no images, and PromptTooLong as
        `encode` does."""
        ...

    @property
    def ends(self) -> tuple[IdRow, IdRow]:
        """The tokens before and behind a text of which vectors or scores are made."""
        ...

    @property
    def between(self) -> IdRow:
        """The tokens between a query and its document, of which an encoder makes a score; else empty."""
        ...

    def encode_part(self, text: str, salt: str = "") -> IdRow:
        """Encode a text without them. What spells a control token is text (`note` says where that fails)."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens, special tokens included."""
        ...

    def detokenizer(self, prompt_ids: Sequence[int] = ()) -> Detokenizer:
        """Returns a fresh detokenizer for text that follows `prompt_ids`; special tokens are left out."""
        ...

    @property
    def output_format(self) -> str:
        """The format by which answers are parsed, and the source from which it is known: a line for people."""
        ...

    @property
    def template_features(self) -> TemplateFeatures | None:
        """None without a chat template."""
        ...

    @property
    def written_calls(self) -> WrittenCalls:
        """The form of tool calls in a grammar for this model."""
        ...

    def reasoning_before(self, prompt_ids: Sequence[int]) -> Reasoning | None:
        """Returns the reasoning that may stand before an answer to a chat with these prompt ids; None for none."""
        ...

    def reasoning_marks(self, prompt: ChatPrompt, prompt_ids: Sequence[int]) -> ReasoningMarks | None:
        """Returns the tokens that open and end reasoning in an answer to the chat that was rendered to `prompt_ids`.
        None where they are unknown, or spelled by tokens of text, which may merge with their neighbours."""
        ...

    def output_parser(
        self, prompt: ChatPrompt, prompt_ids: Sequence[int], new_call_id: Callable[[], str]
    ) -> OutputParser:
        """Returns a fresh parser for one answer to the chat that was rendered to `prompt_ids`. `new_call_id` returns an
        unused id, such as `call_5f0c...`; families with ids of another form take the end of it."""
        ...


class TokenizerLoader(Protocol):
    """Loads tokenizers. Any thread; blocking."""

    def load(self, source: ModelSource) -> Tokenizer:
        """Raises ModelLoadFailed."""
        ...


__all__ = (
    "Detokenizer",
    "EncodedPrompt",
    "ForkKind",
    "ForkPoint",
    "PromptTooLong",
    "TemplateFeatures",
    "Tokenizer",
    "TokenizerLoader",
    "check_length",
)
