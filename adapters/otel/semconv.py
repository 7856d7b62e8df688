"""Names in telemetry: those of the conventions, and those of Cairn that several spans or metrics share.

The `gen_ai.*` names follow the OpenTelemetry semantic conventions for generative AI (status: development); the
constants in `opentelemetry-semantic-conventions` are deprecated, so the names are kept here, where a rename of theirs
is one edit. Names of Cairn begin with `cairn.`; those of a single place stand there.
"""

from typing import Final

from domain.prefix.explanation import TIER_NAMES

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
GEN_AI_TOOL_NAME: Final = "gen_ai.tool.name"
GEN_AI_TOOL_TYPE: Final = "gen_ai.tool.type"
GEN_AI_TOOL_DEFINITIONS: Final = "gen_ai.tool.definitions"

# Values of the conventions
PROVIDER_CAIRN: Final = "cairn"
EXECUTE_TOOL: Final = "execute_tool"
TOOL_EXTENSION: Final = "extension"

# Cairn's own values
PARSER_PLAIN: Final = "plain"
"""The parser that takes every answer for text."""

# Cairn's own attributes
CAIRN_TIER_TOKENS: Final = {tier: f"cairn.prompt.{tier}_tokens" for tier in TIER_NAMES} | {
    "shared": "cairn.prompt.shared_store_tokens"  # `shared_tokens` are those shared with another request
}
CAIRN_STOP_REASON: Final = "cairn.cache.stop_reason"
CAIRN_STATE_SIZE: Final = "cairn.state.size"
CAIRN_COMPUTE_TIME: Final = "cairn.compute.time"
CAIRN_ENDED_IN: Final = "cairn.ended_in"
CAIRN_INCOMPLETE: Final = "cairn.incomplete"
CAIRN_ORIGIN: Final = "cairn.origin"
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
CAIRN_DRAFTER: Final = "cairn.drafter"
CAIRN_TOOL_SERVER: Final = "cairn.tool.server"
CAIRN_IMAGE_TOKENS: Final = "cairn.image.tokens"

# Spans and their events
SPAN_QUEUE: Final = "queue"
SPAN_PREFILL: Final = "prefill"
SPAN_DECODE: Final = "decode"
