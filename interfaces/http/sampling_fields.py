"""Request fields that mean the same in every dialect, and how they become a request."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from domain.errors import InvalidRequest
from domain.ids import ModelId, RequestId
from domain.request import GenerationRequest, Prompt
from domain.sampling import SamplingParams, StopRules
from interfaces.http.dialect import Asked


class SamplingFields(Struct, kw_only=True):
    """Null and absent mean the same for every field. Ranges are checked by the domain."""

    model: str | None = None
    stream: bool | None = None
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
    ignore_eos: bool | None = None
    cache_salt: str | None = None


def generation_request(
    fields: SamplingFields,
    asked: Asked,
    id: RequestId,
    prompt: Prompt,
    *,
    max_tokens: int | None,
    stop: Sequence[str] = (),
    num_logprobs: int | None = None,
    num_prompt_logprobs: int | None = None,
    num_choices: int = 1,
    persist: bool = True,
) -> GenerationRequest:
    """Raises InvalidRequest."""
    return GenerationRequest(
        id,
        ModelId(asked.default_model if fields.model is None else fields.model),
        prompt,
        _sampling(fields, num_logprobs),
        StopRules(max_tokens, fields.min_tokens or 0, tuple(stop), bool(fields.ignore_eos)),
        fields.cache_salt or "",
        asked.services.trace_context(),
        persist=persist,
        num_choices=num_choices,
        num_prompt_logprobs=num_prompt_logprobs,
    )


def _sampling(fields: SamplingFields, num_logprobs: int | None) -> SamplingParams:
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


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _logit_bias(biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple((_token_id(key), bias) for key, bias in biases.items())


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise InvalidRequest(f"logit_bias key {key[:40]!r} is not a token id", param="logit_bias")
    return int(key)


__all__ = ("SamplingFields", "generation_request")
