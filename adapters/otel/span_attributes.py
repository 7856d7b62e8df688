"""The attributes of spans, by the GenAI conventions. They never hold content of a request or an answer."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from adapters.otel import semconv as names
from application import events as on
from domain.printable import PRINTABLE_CHARS
from domain.request.request import RequestKind
from domain.request.sampling import SamplingParams

Value: TypeAlias = str | bool | int | float | Sequence[str]
Attributes: TypeAlias = dict[str, Value]

_NEUTRAL = SamplingParams()


def request_attributes(event: on.RequestQueued) -> Attributes:
    """Attributes known when the request is queued. Settings without effect (penalty 0, top_k off) are left out."""
    sampling = event.sampling
    attributes: Attributes = {
        names.GEN_AI_OPERATION_NAME: event.kind.value,
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER_CAIRN,
        names.GEN_AI_REQUEST_MODEL: encodable(event.requested_model),
        names.GEN_AI_RESPONSE_ID: encodable(event.id),
        names.GEN_AI_RESPONSE_MODEL: encodable(event.model),
        names.GEN_AI_USAGE_INPUT_TOKENS: event.num_prompt_tokens,
    }
    if event.kind in (RequestKind.CHAT, RequestKind.TEXT):
        attributes |= {
            names.GEN_AI_OUTPUT_TYPE: "text",
            names.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
            names.GEN_AI_REQUEST_TOP_P: sampling.top_p,
        }
    if event.client:
        attributes["cairn.key.name"] = event.client
    if event.max_tokens is not None:
        attributes[names.GEN_AI_REQUEST_MAX_TOKENS] = event.max_tokens
    if event.num_stop_strings:
        attributes["cairn.request.stop_sequences"] = event.num_stop_strings
    if sampling.seed is not None:
        attributes[names.GEN_AI_REQUEST_SEED] = sampling.seed
    optional: Mapping[str, tuple[float, float]] = {
        names.GEN_AI_REQUEST_TOP_K: (sampling.top_k, _NEUTRAL.top_k),
        names.GEN_AI_REQUEST_FREQUENCY_PENALTY: (sampling.frequency_penalty, _NEUTRAL.frequency_penalty),
        names.GEN_AI_REQUEST_PRESENCE_PENALTY: (sampling.presence_penalty, _NEUTRAL.presence_penalty),
    }
    attributes.update({name: value for name, (value, neutral) in optional.items() if value != neutral})
    return attributes


def response_attributes(event: on.RequestEnded) -> Attributes:
    """Attributes known when the request has ended."""
    attributes: Attributes = {
        names.GEN_AI_RESPONSE_FINISH_REASONS: (event.reason,),
        names.GEN_AI_USAGE_OUTPUT_TOKENS: event.usage.completion_tokens,
        names.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: event.usage.reused_tokens,
    }
    if event.usage.num_proposed:
        attributes["cairn.speculation.proposed_tokens"] = event.usage.num_proposed
        attributes["cairn.speculation.accepted_tokens"] = event.usage.num_accepted
    if event.error_code is not None:
        attributes[names.ERROR_TYPE] = event.error_code
    return attributes


def refusal_attributes(event: on.RequestRefused) -> Attributes:
    return {
        names.GEN_AI_OPERATION_NAME: event.kind.value,
        names.GEN_AI_PROVIDER_NAME: names.PROVIDER_CAIRN,
        names.GEN_AI_REQUEST_MODEL: encodable(event.model),
        names.ERROR_TYPE: event.error_code,
        names.CAIRN_ENDED_IN: "refused",
    }


def lookup_attributes(event: on.PrefixMatched) -> Attributes:
    """Attributes of a lookup: reused tokens by tier, and the reason of the stop."""
    attributes: Attributes = {
        **{name: event.reused.get(tier, 0) for tier, name in names.CAIRN_TIER_TOKENS.items()},
        "cairn.prompt.known_tokens": event.num_known,
        names.CAIRN_STOP_REASON: event.reason,
    }
    if event.diverged_at is not None:
        attributes["cairn.prompt.diverged_at"] = event.diverged_at
    return attributes


def restore_attributes(event: on.StateRestored) -> Attributes:
    """Attributes of a restore. The rate is in bytes a second, of fetching and restoring together."""
    by_tier = {names.CAIRN_TIER_BYTES[tier]: num for tier, num in event.tier_bytes.items()}
    attributes: Attributes = {
        "cairn.state.position": event.position,
        names.CAIRN_STATE_SIZE: event.size_bytes,
        names.CAIRN_COMPUTE_TIME: (event.at_ns - event.fetched_ns) / 1e9,
        **by_tier,
    }
    if event.at_ns > event.started_ns:
        attributes["cairn.restore.rate"] = event.size_bytes / ((event.at_ns - event.started_ns) / 1e9)
    return attributes


def awaited_attributes(event: on.PrefixAwaited) -> Attributes:
    return {"cairn.cache.owner": event.owner, "cairn.prompt.shared_tokens": event.num_shared}


def chunk_attributes(event: on.PrefillChunkComputed) -> Attributes:
    return {
        "cairn.chunk.start": event.start,
        "cairn.chunk.end": event.end,
        "cairn.chunk.duration": (event.at_ns - event.started_ns) / 1e9,
    }


def capture_attributes(event: on.StateCaptured) -> Attributes:
    return {
        "cairn.state.blocks": event.num_blocks,
        "cairn.state.snapshots": event.num_snapshots,
        names.CAIRN_STATE_SIZE: event.size_bytes,
        names.CAIRN_COMPUTE_TIME: (event.at_ns - event.started_ns) / 1e9,
    }


def images_attributes(event: on.ImagesMatched) -> Attributes:
    return {
        "cairn.images": event.num_images,
        names.CAIRN_IMAGE_TOKENS: event.num_tokens,
        "cairn.image.reused_tokens": event.num_reused,
    }


def tower_attributes(event: on.ImageSeen) -> Attributes:
    return {
        names.CAIRN_IMAGE_TOKENS: event.num_tokens,
        "cairn.image.size": event.size_bytes,
        "cairn.image.tower_time": (event.at_ns - event.started_ns) / 1e9,
    }


def parse_attributes(parsing: on.Parsing) -> Attributes:
    attributes: Attributes = {
        names.CAIRN_PARSER: parsing.family or names.PARSER_PLAIN,
        "cairn.parse.time": parsing.busy_ns / 1e9,
        "cairn.tool_calls": parsing.num_calls,
    }
    if parsing.problems:
        attributes["cairn.tool_call.problems"] = parsing.problems
    if parsing.repeated_tokens:
        attributes["cairn.repeated_tokens"] = parsing.repeated_tokens
    return attributes


def encodable(text: str, max_chars: int = PRINTABLE_CHARS) -> str:
    """`text` cut to `max_chars` and without lone surrogates, for which protobuf refuses the whole batch of spans."""
    text = text[:max_chars]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
