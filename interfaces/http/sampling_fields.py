"""Request fields that mean the same in every dialect, and how they become a request."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Struct

from domain.errors import InvalidRequest
from domain.grammar import Grammar
from domain.ids import ModelId, RequestId
from domain.priority import Priority
from domain.request import GenerationRequest, Prompt
from domain.sampling import SamplingParams, StopRules
from interfaces.http.dialect import Asked
from interfaces.http.parameters import supported


class SamplingFields(Struct, kw_only=True):
    """Null and absent mean the same for every field. Ranges are checked by the domain."""

    model: Annotated[str | None, supported("without it, the default model answers")] = None
    stream: Annotated[bool | None, supported("server-sent events")] = None
    min_tokens: Annotated[int | None, supported("holds back every token that would end the answer")] = None
    temperature: Annotated[float | None, supported("0 to 10, 1 by default, or what is set for the model")] = None
    top_p: Annotated[float | None, supported("above 0, at most 1")] = None
    top_k: Annotated[int | None, supported("0 and -1 are off")] = None
    min_p: Annotated[float | None, supported("0 to 1")] = None
    repetition_penalty: Annotated[float | None, supported("1 is off")] = None
    presence_penalty: Annotated[float | None, supported("0 is off")] = None
    frequency_penalty: Annotated[float | None, supported("0 is off")] = None
    logit_bias: Annotated[dict[str, float] | None, supported("token id to -100..100")] = None
    seed: Annotated[int | None, supported("the randomness of the answer; choice *i* is drawn with `seed + i`")] = None
    ignore_eos: Annotated[bool | None, supported("an answer does not end by itself")] = None
    cache_salt: Annotated[str | None, supported("Cairn's own: prefixes are shared only between equal salts")] = None


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
    grammar: Grammar | None = None,
    priority: Priority = Priority.INTERACTIVE,
) -> GenerationRequest:
    """Raises InvalidRequest."""
    return GenerationRequest(
        id,
        ModelId(asked.default_model if fields.model is None else fields.model),
        prompt,
        sampling=_sampling(fields, num_logprobs),
        stop=StopRules(max_tokens, fields.min_tokens or 0, tuple(stop), bool(fields.ignore_eos)),
        cache_salt=fields.cache_salt or "",
        trace_carrier=asked.services.trace_context(),
        persist=persist,
        num_choices=num_choices,
        grammar=grammar,
        num_prompt_logprobs=num_prompt_logprobs,
        priority=priority,
    )


def _sampling(fields: SamplingFields, num_logprobs: int | None) -> SamplingParams:
    return SamplingParams.chosen(
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=0 if fields.top_k == -1 else fields.top_k,  # -1 is how vLLM's clients say off
        min_p=fields.min_p,
        repetition_penalty=fields.repetition_penalty,
        presence_penalty=fields.presence_penalty,
        frequency_penalty=fields.frequency_penalty,
        logit_bias=_logit_bias(fields.logit_bias or {}),
        seed=fields.seed,
        num_logprobs=num_logprobs,
    )


def _logit_bias(biases: Mapping[str, float]) -> tuple[tuple[int, float], ...]:
    return tuple((_token_id(key), bias) for key, bias in biases.items())


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdigit() and len(key) <= 10):
        raise InvalidRequest(f"logit_bias key {key[:40]!r} is not a token id", param="logit_bias")
    return int(key)


__all__ = ("SamplingFields", "generation_request")
