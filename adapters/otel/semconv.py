"""The names of spans, events and attributes in telemetry; those of metrics are in `catalogue`.

The `gen_ai.*` names follow the OpenTelemetry semantic conventions for generative AI (status: development); the
constants in `opentelemetry-semantic-conventions` are deprecated, so the names are kept here, where a rename of theirs
is one edit. What the conventions do not name is under `cairn.*`.
"""

from typing import Final

from domain.prefix.explanation import TIER_NAMES
from domain.request.request import RequestKind

# Attributes of the conventions
ERROR_TYPE: Final = "error.type"
HTTP_ROUTE: Final = "http.route"
GEN_AI_OPERATION_NAME: Final = "gen_ai.operation.name"
GEN_AI_PROVIDER_NAME: Final = "gen_ai.provider.name"
GEN_AI_OUTPUT_TYPE: Final = "gen_ai.output.type"
GEN_AI_REQUEST_MODEL: Final = "gen_ai.request.model"
GEN_AI_REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
GEN_AI_REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
GEN_AI_REQUEST_TOP_P: Final = "gen_ai.request.top_p"
GEN_AI_REQUEST_TOP_K: Final = "gen_ai.request.top_k"
GEN_AI_REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
GEN_AI_REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
GEN_AI_REQUEST_SEED: Final = "gen_ai.request.seed"
GEN_AI_RESPONSE_ID: Final = "gen_ai.response.id"
GEN_AI_RESPONSE_MODEL: Final = "gen_ai.response.model"
GEN_AI_RESPONSE_FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK: Final = "gen_ai.response.time_to_first_chunk"
GEN_AI_USAGE_INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
GEN_AI_USAGE_OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
GEN_AI_SYSTEM_INSTRUCTIONS: Final = "gen_ai.system_instructions"
GEN_AI_INPUT_MESSAGES: Final = "gen_ai.input.messages"
GEN_AI_OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
GEN_AI_TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"

# Values of the conventions
OPERATIONS: Final = {
    RequestKind.CHAT: "chat",
    RequestKind.TEXT: "text_completion",
    RequestKind.EMBEDDINGS: "embeddings",
    RequestKind.SCORES: "rerank",  # not in the conventions
}
OUTPUT_TYPE_TEXT: Final = "text"
PROVIDER_CAIRN: Final = "cairn"
VALUE_OTHER: Final = "_OTHER"

# Cairn's own values
PARSER_PLAIN: Final = "plain"
"""The parser that takes every answer for text."""
PARSER_FAILED: Final = "parser_failed"
ENDED_REFUSED: Final = "refused"

# Cairn's own attributes
CAIRN_KEY_NAME: Final = "cairn.key.name"
CAIRN_STOP_SEQUENCES: Final = "cairn.request.stop_sequences"
CAIRN_CHUNK_START: Final = "cairn.chunk.start"
CAIRN_CHUNK_END: Final = "cairn.chunk.end"
CAIRN_CHUNK_DURATION: Final = "cairn.chunk.duration"
CAIRN_CHUNKS: Final = "cairn.prefill.chunks"
CAIRN_COMPUTED_TOKENS: Final = "cairn.prompt.computed_tokens"
CAIRN_REUSED_TOKENS: Final = "cairn.prompt.reused_tokens"
CAIRN_TIER_TOKENS: Final = {tier: f"cairn.prompt.{tier}_tokens" for tier in TIER_NAMES} | {
    "shared": "cairn.prompt.shared_store_tokens"  # `shared_tokens` are those shared with another request
}
CAIRN_KNOWN_TOKENS: Final = "cairn.prompt.known_tokens"
CAIRN_SHARED_TOKENS: Final = "cairn.prompt.shared_tokens"
CAIRN_STOP_REASON: Final = "cairn.cache.stop_reason"
CAIRN_DIVERGED_AT: Final = "cairn.prompt.diverged_at"
CAIRN_OWNER: Final = "cairn.cache.owner"
CAIRN_POSITION: Final = "cairn.state.position"
CAIRN_STATE_SIZE: Final = "cairn.state.size"
CAIRN_NUM_BLOCKS: Final = "cairn.state.blocks"
CAIRN_NUM_SNAPSHOTS: Final = "cairn.state.snapshots"
CAIRN_COMPUTE_TIME: Final = "cairn.compute.time"
CAIRN_ENDED_IN: Final = "cairn.ended_in"
CAIRN_INCOMPLETE: Final = "cairn.incomplete"
CAIRN_ORIGIN: Final = "cairn.origin"
CAIRN_STEP_PHASE: Final = "cairn.step.phase"
CAIRN_REASON: Final = "cairn.reason"
CAIRN_WHERE: Final = "cairn.where"
CAIRN_KIND: Final = "cairn.kind"
CAIRN_OPERATION: Final = "cairn.operation"
CAIRN_OUTCOME: Final = "cairn.outcome"
CAIRN_EVENT: Final = "cairn.event"
CAIRN_PURPOSE: Final = "cairn.memory.purpose"
CAIRN_MARK: Final = "cairn.memory.mark"
CAIRN_TIER: Final = "cairn.cache.tier"
CAIRN_RESULT: Final = "cairn.cache.result"
CAIRN_PARSER: Final = "cairn.parser"
CAIRN_TIER_BYTES: Final = {tier: f"cairn.restore.{tier}_size" for tier in TIER_NAMES}
CAIRN_RESTORE_RATE: Final = "cairn.restore.rate"
CAIRN_DECODE_TOKENS: Final = "cairn.decode.tokens"
CAIRN_DECODE_RATE: Final = "cairn.decode.rate"
CAIRN_DECODE_STEPS: Final = "cairn.decode.steps"
CAIRN_DRAFTER: Final = "cairn.drafter"
CAIRN_PROPOSED_TOKENS: Final = "cairn.speculation.proposed_tokens"
CAIRN_ACCEPTED_TOKENS: Final = "cairn.speculation.accepted_tokens"
CAIRN_BATCH_MEAN: Final = "cairn.decode.batch.mean"
CAIRN_BATCH_MAX: Final = "cairn.decode.batch.max"
CAIRN_NUM_CALLS: Final = "cairn.tool_calls"
CAIRN_CALL_PROBLEMS: Final = "cairn.tool_call.problems"
CAIRN_PARSE_BUSY: Final = "cairn.parse.time"
CAIRN_RECORDS_PERSISTED: Final = "cairn.records.persisted"
CAIRN_RECORDS_DROPPED: Final = "cairn.records.dropped"
CAIRN_PERSIST_LAG: Final = "cairn.persist.lag"
CAIRN_OMITTED: Final = "cairn.content.omitted"
CAIRN_NUM_IMAGES: Final = "cairn.images"
CAIRN_IMAGE_TOKENS: Final = "cairn.image.tokens"
CAIRN_IMAGE_REUSED: Final = "cairn.image.reused_tokens"
CAIRN_IMAGE_SIZE: Final = "cairn.image.size"
CAIRN_TOWER_TIME: Final = "cairn.image.tower_time"

# Spans and their events
SPAN_QUEUE: Final = "queue"
SPAN_LOOKUP: Final = "prefix lookup"
SPAN_RESTORE: Final = "restore"
SPAN_PREFILL: Final = "prefill"
SPAN_DECODE: Final = "decode"
SPAN_PARSE: Final = "parse"
SPAN_PERSIST: Final = "persist"
EVENT_CHUNK: Final = "cairn.prefill.chunk"
EVENT_WAITS: Final = "cairn.waits"
EVENT_AWAITED: Final = "cairn.prefix.awaited"
EVENT_CAPTURED: Final = "cairn.state.captured"
EVENT_FIRST_TOKEN: Final = "cairn.first_token"
EVENT_IMAGES: Final = "cairn.images.matched"
EVENT_IMAGE_SEEN: Final = "cairn.image.seen"
EVENT_DROPPED: Final = "cairn.records.dropped"
