"""The request fields that chat and text completions share, and how they become sampling and stop rules."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from domain.errors import InvalidRequest
from domain.sampling import SamplingParams, StopRules

MAX_CHOICES = 128
"""Completions one HTTP request may ask for, over all its prompts."""


class StreamOptions(Struct):
    """`include_usage`: end the stream with a chunk that carries the token counts."""

    include_usage: bool | None = None


class SamplingFields(Struct, kw_only=True):
    """Null and absent mean the same for every field. Ranges are checked by the domain."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    store: bool | None = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and bool(self.stream_options.include_usage)


def sampling_params(fields: SamplingFields, num_logprobs: int | None) -> SamplingParams:
    """Raises InvalidRequest."""
    defaults = SamplingParams()
    return SamplingParams(
        temperature=_or(fields.temperature, defaults.temperature),
        top_p=_or(fields.top_p, defaults.top_p),
        top_k=0 if fields.top_k in (None, -1) else fields.top_k,  # -1 is how vLLM's clients say off
        min_p=_or(fields.min_p, defaults.min_p),
        repetition_penalty=_or(fields.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=_or(fields.presence_penalty, defaults.presence_penalty),
        frequency_penalty=_or(fields.frequency_penalty, defaults.frequency_penalty),
        logit_bias=_logit_bias(fields.logit_bias or {}),
        seed=fields.seed,
        num_logprobs=num_logprobs,
    )


def stop_rules(fields: SamplingFields, max_tokens: int | None) -> StopRules:
    """Raises InvalidRequest."""
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    return StopRules(max_tokens, fields.min_tokens or 0, stop, bool(fields.ignore_eos))


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _logit_bias(biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple((_token_id(key), bias) for key, bias in biases.items())


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise InvalidRequest(f"logit_bias key {key[:40]!r} is not a token id", param="logit_bias")
    return int(key)


__all__ = ("MAX_CHOICES", "SamplingFields", "StreamOptions", "sampling_params", "stop_rules")
