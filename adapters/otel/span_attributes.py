"""What a request's span says about the request and its answer, by the GenAI conventions. Never its content."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from adapters.otel import semconv as names
from application.events import RequestEnded, RequestQueued
from domain.sampling import SamplingParams
from domain.shown import SHOWN_CHARS

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = dict[str, Value]

_NEUTRAL = SamplingParams()


def operation_name(*, is_chat: bool) -> str:
    return names.OPERATION_CHAT if is_chat else names.OPERATION_TEXT_COMPLETION


def request_attributes(event: RequestQueued) -> Attributes:
    """Known when the request is queued. Settings that have no effect (penalty 0, top_k off) are left out."""
    sampling = event.sampling
    attributes: Attributes = {
        names.GEN_AI_OPERATION_NAME: operation_name(is_chat=event.is_chat),
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER_CAIRN,
        names.GEN_AI_OUTPUT_TYPE: names.OUTPUT_TYPE_TEXT,
        names.GEN_AI_REQUEST_MODEL: encodable(event.requested_model),
        names.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
        names.GEN_AI_REQUEST_TOP_P: sampling.top_p,
        names.GEN_AI_RESPONSE_ID: encodable(event.id),
        names.GEN_AI_RESPONSE_MODEL: encodable(event.model),
        names.GEN_AI_USAGE_INPUT_TOKENS: event.num_prompt_tokens,
    }
    if event.client:
        attributes[names.CAIRN_KEY_NAME] = event.client
    if event.max_tokens is not None:
        attributes[names.GEN_AI_REQUEST_MAX_TOKENS] = event.max_tokens
    if event.num_stop_strings:
        attributes[names.CAIRN_STOP_SEQUENCES] = event.num_stop_strings
    if sampling.seed is not None:
        attributes[names.GEN_AI_REQUEST_SEED] = sampling.seed
    optional: Mapping[str, tuple[float, float]] = {
        names.GEN_AI_REQUEST_TOP_K: (sampling.top_k, _NEUTRAL.top_k),
        names.GEN_AI_REQUEST_FREQUENCY_PENALTY: (sampling.frequency_penalty, _NEUTRAL.frequency_penalty),
        names.GEN_AI_REQUEST_PRESENCE_PENALTY: (sampling.presence_penalty, _NEUTRAL.presence_penalty),
    }
    attributes.update({name: value for name, (value, neutral) in optional.items() if value != neutral})
    return attributes


def response_attributes(event: RequestEnded) -> Attributes:
    """Known when the request has ended."""
    attributes: Attributes = {
        names.GEN_AI_RESPONSE_FINISH_REASONS: (event.reason,),
        names.GEN_AI_USAGE_OUTPUT_TOKENS: event.usage.completion_tokens,
        names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: event.usage.reused_tokens,
    }
    if event.error_code is not None:
        attributes[names.ERROR_TYPE] = event.error_code
    return attributes


def encodable(text: str, max_chars: int = SHOWN_CHARS) -> str:
    """`text` cut to what is worth showing and without what cannot be sent: protobuf refuses lone surrogates, and with
    them the whole batch of spans."""
    text = text[:max_chars]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


__all__ = ("Attributes", "Value", "encodable", "operation_name", "request_attributes", "response_attributes")
