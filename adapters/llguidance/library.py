"""The library, imported when a model is loaded, and the limits that bound the cost of one grammar."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from domain.models.model_card import Vocabulary

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

    The library holds the interpreter's lock meanwhile, so it is called in two parts of about equal length, between
    which other threads run.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    ends = sorted(id for id in vocabulary.eos_token_ids if id < len(vocabulary.tokens))
    if not ends:
        raise ValueError("the tokenizer has no token that ends an answer")
    tokens = _Tokens(vocabulary, ends)
    wrapper = TokenizerWrapper(tokens)
    made = LLTokenizer(wrapper, eos_token=ends, slices=[]).with_slices(LLTokenizer.general_slices())
    wrapper.tokens = tokens.tokens = []  # copied by now, and the wrapper stays
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
        """Encode byte by byte. Called only where a grammar forces text, and none does (see `rendering`)."""
        data = text.encode() if isinstance(text, str) else text
        found = (self._token_of_byte.get(data[at : at + 1]) for at in range(len(data)))
        return [id for id in found if id is not None]
