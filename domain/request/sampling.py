"""Sampling parameters and stop rules of a request. Ranges are checked on construction; the vocabulary later.

The value of a parameter is the client's own, else the model's table, else generation_config.json, else neutral.
"""

from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any

from domain.errors import require
from domain.id_row import MAX_TOKEN_ID
from domain.request.repetition import RepetitionDetection

MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 1_000
MAX_LOGIT_BIAS = 1_024
MAX_SEED = 2**63 - 1
MAX_TOKEN_IDS = 1_024

_DEFAULTED = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
    }
)
"""The fields that a model may have defaults for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """One request's sampling. Greedy when `temperature` or `top_p` is 0.

    Penalties look at every token generated so far (repetition penalty: the prompt too), as OpenAI and vLLM define
    them. `seed` makes the noise of every token a function of the request alone, whatever else shares the batch; the
    logits it is added to may round otherwise in another batch.
    `allowed_token_ids`: all other tokens are never chosen, also not those that end an answer; None allows every token.
    `num_logprobs`: None for none, else how many alternatives to report beside the chosen token (0 to 20).
    `left_open`: names of fields that the client did not set, and that a model's own defaults may fill.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    num_logprobs: int | None = None
    allowed_token_ids: frozenset[int] | None = None
    left_open: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def chosen(
        cls,
        *,
        logit_bias: tuple[tuple[int, float], ...] = (),
        seed: int | None = None,
        **values: Any,
    ) -> "SamplingParams":
        """Returns the parameters that a client set; None leaves one open, and a seed of -1 is a random one, as with
        None. Raises InvalidRequest."""
        given = {name: value for name, value in values.items() if value is not None}
        left_open = _DEFAULTED - given.keys()
        seed = None if seed == -1 else seed
        return cls(logit_bias=logit_bias, seed=seed, left_open=left_open, **given)

    def __post_init__(self) -> None:
        require(isfinite(self.temperature) and 0 <= self.temperature <= 10, "temperature", "must be between 0 and 10")
        require(isfinite(self.top_p) and 0 <= self.top_p <= 1, "top_p", "must be between 0 and 1")
        require(0 <= self.top_k < 2**31, "top_k", "must be 0 (off) or a positive integer")
        require(isfinite(self.min_p) and 0 <= self.min_p <= 1, "min_p", "must be between 0 and 1")
        require(
            isfinite(self.repetition_penalty) and 0 < self.repetition_penalty <= 10,
            "repetition_penalty",
            "must be above 0 and at most 10",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value: float = getattr(self, name)
            require(isfinite(value) and -2 <= value <= 2, name, "must be between -2 and 2")
        require(len(self.logit_bias) <= MAX_LOGIT_BIAS, "logit_bias", f"has more than {MAX_LOGIT_BIAS} entries")
        for token_id, bias in self.logit_bias:
            require(isfinite(bias) and -100 <= bias <= 100, "logit_bias", f"value for {token_id} is not in -100..100")
        if self.seed is not None:
            require(-MAX_SEED - 1 <= self.seed <= MAX_SEED, "seed", "must be a 64-bit integer")
        if self.num_logprobs is not None:
            require(0 <= self.num_logprobs <= MAX_TOP_LOGPROBS, "top_logprobs", f"must be in 0..{MAX_TOP_LOGPROBS}")
        if self.allowed_token_ids is not None:
            _check_token_ids(self.allowed_token_ids, "allowed_token_ids")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_p == 0

    @property
    def has_penalties(self) -> bool:
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    def check_vocabulary(self, vocab_size: int) -> None:
        """Raises InvalidRequest for tokens outside the vocabulary: MLX checks no index and would corrupt memory."""
        keys = [token_id for token_id, _ in self.logit_bias]
        for name, ids in (("logit_bias", keys), ("allowed_token_ids", self.allowed_token_ids or ())):
            for token_id in ids:
                is_known = 0 <= token_id < vocab_size
                require(is_known, name, f"has {token_id}, which is outside the vocabulary (0 to {vocab_size - 1})")


@dataclass(frozen=True, slots=True)
class StopRules:
    """The rules by which a completion ends. `max_tokens` is an upper bound, cut to the room in context and memory;
    None means up to the end of the context, 0 no completion at all.

    `stop` strings are matched on text, also across token boundaries, and never appear in the output. `min_tokens`
    suppresses end-of-sequence and stop strings until that many tokens are out. `ignore_eos` never ends on EOS.
    `token_ids`: tokens that end it as EOS does, also with `ignore_eos`.
    `repetition`: the repetition that ends it, outside of tool calls and of answers with a grammar; None for the
    model's own.
    """

    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    token_ids: frozenset[int] = frozenset()
    repetition: RepetitionDetection | None = None

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            require(self.max_tokens >= 0, "max_tokens", "must not be negative")
        require(self.min_tokens >= 0, "min_tokens", "must not be negative")
        if self.max_tokens is not None:
            require(self.min_tokens <= self.max_tokens, "min_tokens", "must not exceed max_tokens")
        require(len(self.stop) <= MAX_STOP_STRINGS, "stop", f"has more than {MAX_STOP_STRINGS} strings")
        for text in self.stop:
            require(0 < len(text) <= MAX_STOP_CHARS, "stop", f"strings must have 1 to {MAX_STOP_CHARS} characters")
        if self.token_ids:
            _check_token_ids(self.token_ids, "stop_token_ids")

    def with_default(self, repetition: RepetitionDetection) -> "StopRules":
        """Returns the rules with this detection if the client named none. A client that wants no end of the model's
        own gets none of the model's table either."""
        is_open = self.repetition is None and not self.ignore_eos
        return replace(self, repetition=repetition) if is_open else self


def _check_token_ids(token_ids: frozenset[int], field: str) -> None:
    require(0 < len(token_ids) <= MAX_TOKEN_IDS, field, f"must have 1 to {MAX_TOKEN_IDS} token ids")
    require(min(token_ids) >= 0 and max(token_ids) <= MAX_TOKEN_ID, field, "has a number that is no token id")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingDefaults:
    """Default values of sampling parameters, with ranges as in SamplingParams; None where there is none."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None

    def __post_init__(self) -> None:
        self.apply(SamplingParams.chosen())

    def over(self, other: "SamplingDefaults") -> "SamplingDefaults":
        """Returns these defaults, and the other's where there are none here."""
        return replace(other, **self.set_values())

    def apply(self, sampling: SamplingParams) -> SamplingParams:
        """Returns the sampling with these defaults for the fields that its client left open."""
        wanted = {name: value for name, value in self.set_values().items() if name in sampling.left_open}
        return replace(sampling, **wanted) if wanted else sampling

    def set_values(self) -> dict[str, Any]:
        """Returns the values that are set, by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}
