"""Every name that leaves the process in telemetry: spans, events, attributes, metrics. Used from here only.

The `gen_ai.*` names follow the OpenTelemetry semantic conventions for generative AI (status: development); the
constants in `opentelemetry-semantic-conventions` are deprecated, so the names are kept here, where a rename of theirs
is one edit. What the conventions do not name is under `cairn.*`.
"""

from typing import Final

from domain.explanation import TIER_NAMES

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

# Values of the conventions
OPERATION_CHAT: Final = "chat"
OPERATION_TEXT_COMPLETION: Final = "text_completion"
OUTPUT_TYPE_TEXT: Final = "text"
PROVIDER_CAIRN: Final = "cairn"
VALUE_OTHER: Final = "_OTHER"

# Cairn's own attributes
CAIRN_KEY_NAME: Final = "cairn.key.name"
CAIRN_STOP_SEQUENCES: Final = "cairn.request.stop_sequences"
CAIRN_CHUNK_START: Final = "cairn.chunk.start"
CAIRN_CHUNK_END: Final = "cairn.chunk.end"
CAIRN_CHUNK_DURATION: Final = "cairn.chunk.duration"
CAIRN_CHUNKS: Final = "cairn.prefill.chunks"
CAIRN_COMPUTED_TOKENS: Final = "cairn.prompt.computed_tokens"
CAIRN_REUSED_TOKENS: Final = "cairn.prompt.reused_tokens"
CAIRN_TIER_TOKENS: Final = {tier: f"cairn.prompt.{tier}_tokens" for tier in TIER_NAMES}
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
CAIRN_OUTCOME: Final = "cairn.outcome"
CAIRN_EVENT: Final = "cairn.event"

# Spans and their events
SPAN_QUEUE: Final = "queue"
SPAN_LOOKUP: Final = "prefix lookup"
SPAN_RESTORE: Final = "restore"
SPAN_PREFILL: Final = "prefill"
SPAN_DECODE: Final = "decode"
EVENT_CHUNK: Final = "cairn.prefill.chunk"
EVENT_AWAITED: Final = "cairn.prefix.awaited"
EVENT_CAPTURED: Final = "cairn.state.captured"
EVENT_FIRST_TOKEN: Final = "cairn.first_token"

# Metrics of the conventions
GEN_AI_SERVER_REQUEST_DURATION: Final = "gen_ai.server.request.duration"
GEN_AI_SERVER_TIME_TO_FIRST_TOKEN: Final = "gen_ai.server.time_to_first_token"
GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN: Final = "gen_ai.server.time_per_output_token"

# Cairn's own metrics
CAIRN_REQUESTS_WAITING: Final = "cairn.requests.waiting"
CAIRN_REQUESTS_RUNNING: Final = "cairn.requests.running"
CAIRN_REQUESTS_ENDED: Final = "cairn.requests.ended"
CAIRN_REQUESTS_REFUSED: Final = "cairn.requests.refused"
CAIRN_HTTP_REFUSED: Final = "cairn.http.refused"
CAIRN_QUEUE_TIME: Final = "cairn.queue.time"
CAIRN_PREFILL_TIME: Final = "cairn.prefill.time"
CAIRN_DECODE_TIME: Final = "cairn.decode.time"
CAIRN_PROMPT_TOKENS: Final = "cairn.prompt.tokens"
CAIRN_OUTPUT_TOKENS: Final = "cairn.output.tokens"
CAIRN_STEP_DURATION: Final = "cairn.step.duration"
CAIRN_STEP_TOKENS: Final = "cairn.step.tokens"
CAIRN_MODELS_LOADED: Final = "cairn.models.loaded"
CAIRN_MODEL_WEIGHTS: Final = "cairn.model.weights"
CAIRN_MODEL_LOAD_TIME: Final = "cairn.model.load.time"
CAIRN_PREFIX_LOOKUPS: Final = "cairn.prefix.lookups"
CAIRN_PREFIX_LOOKUP_TIME: Final = "cairn.prefix.lookup.time"
CAIRN_PREFIX_AWAITED: Final = "cairn.prefix.awaited"
CAIRN_RESTORE_TIME: Final = "cairn.restore.time"
CAIRN_RESTORED: Final = "cairn.restored"
CAIRN_CAPTURE_TIME: Final = "cairn.capture.time"
CAIRN_CAPTURED: Final = "cairn.captured"
CAIRN_STORE_RECORDS: Final = "cairn.store.records"
CAIRN_STORE_WRITTEN: Final = "cairn.store.written"
CAIRN_STORE_QUEUED: Final = "cairn.store.queued"
CAIRN_STORE_WRITE_TIME: Final = "cairn.store.write.time"
CAIRN_FAULTS: Final = "cairn.faults"
CAIRN_TELEMETRY_FAILURES: Final = "cairn.telemetry.failures"
