"""The metrics Cairn has, as data: one entry, one instrument. Buckets in seconds; units in UCUM, as OpenTelemetry asks.

The documentation, the dashboard and the tests read this catalogue, so a metric they name and nobody feeds is an error.
"""

from adapters.otel import semconv as names
from adapters.otel.metric_spec import MetricKind, MetricSpec

_DURATION_BUCKETS = tuple(round(0.01 * 2**n, 2) for n in range(14))
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),  # long prompts on small machines
)
_OUTPUT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_LAG_BUCKETS = (*_STEP_BUCKETS, 30.0, 60.0, 300.0)
_BATCH_BUCKETS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)

_MODEL = (names.GEN_AI_RESPONSE_MODEL,)
_REQUEST = (
    names.GEN_AI_OPERATION_NAME,
    names.GEN_AI_PROVIDER_NAME,
    names.GEN_AI_REQUEST_MODEL,
    names.GEN_AI_RESPONSE_MODEL,
)


def _histogram(name: str, description: str, attributes: tuple[str, ...], buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, "s", description, attributes, buckets)


def _counter(name: str, unit: str, description: str, *attributes: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.COUNTER, unit, description, attributes)


def _gauge(name: str, unit: str, description: str, *attributes: str) -> MetricSpec:
    return MetricSpec(name, MetricKind.OBSERVED_GAUGE, unit, description, attributes)


REQUEST_DURATION = _histogram(
    names.GEN_AI_SERVER_REQUEST_DURATION,
    "From queued to the last token.",
    (*_REQUEST, names.ERROR_TYPE),
    _DURATION_BUCKETS,
)
TIME_TO_FIRST_TOKEN = _histogram(
    names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, "From queued to the first token.", _REQUEST, _FIRST_TOKEN_BUCKETS
)
TIME_PER_OUTPUT_TOKEN = _histogram(
    names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
    "Mean time per output token after the first, for requests that did not fail.",
    _REQUEST,
    _OUTPUT_TOKEN_BUCKETS,
)
QUEUE_TIME = _histogram(names.CAIRN_QUEUE_TIME, "Time spent waiting for admission.", _MODEL, _FIRST_TOKEN_BUCKETS)
PREFILL_TIME = _histogram(names.CAIRN_PREFILL_TIME, "From admission to decode.", _MODEL, _FIRST_TOKEN_BUCKETS)
DECODE_TIME = _histogram(names.CAIRN_DECODE_TIME, "From decode to the end.", _MODEL, _FIRST_TOKEN_BUCKETS)
INTER_TOKEN_LATENCY = MetricSpec(
    names.CAIRN_INTER_TOKEN_LATENCY,
    MetricKind.TALLY,
    "s",
    "From one token of an answer to the next, as they leave the engine.",
    _MODEL,
    (0.001, 0.0025, 0.005, *_OUTPUT_TOKEN_BUCKETS, 5.0, 10.0, 30.0),
)
STEP_DURATION = MetricSpec(
    names.CAIRN_STEP_DURATION, MetricKind.TALLY, "s", "Duration of an engine step.", (), _STEP_BUCKETS
)
STEP_BATCH = MetricSpec(
    names.CAIRN_STEP_BATCH, MetricKind.TALLY, "{token}", "Tokens decoded in one engine step.", (), _BATCH_BUCKETS
)
PARSE_TIME = _histogram(
    names.CAIRN_PARSE_TIME,
    "Time that reading an answer took of the event loop: detokenizing, parsing, stop strings.",
    (names.CAIRN_PARSER,),
    _STEP_BUCKETS,
)
MODEL_LOAD_TIME = _histogram(names.CAIRN_MODEL_LOAD_TIME, "Time to load a model.", _MODEL, _FIRST_TOKEN_BUCKETS)

REQUESTS_WAITING = MetricSpec(
    names.CAIRN_REQUESTS_WAITING, MetricKind.OBSERVED_GAUGE, "{request}", "Requests waiting for admission.", _MODEL
)
REQUESTS_WAITING_FOR = MetricSpec(
    names.CAIRN_REQUESTS_WAITING_FOR,
    MetricKind.OBSERVED_GAUGE,
    "{request}",
    "Requests in the queue by what they wait for: a place or memory.",
    (names.CAIRN_REASON,),
)
REQUESTS_RUNNING = MetricSpec(
    names.CAIRN_REQUESTS_RUNNING, MetricKind.OBSERVED_GAUGE, "{request}", "Requests in prefill or decode.", _MODEL
)
MODELS_LOADED = MetricSpec(names.CAIRN_MODELS_LOADED, MetricKind.OBSERVED_GAUGE, "{model}", "Models loaded now.")
MODEL_WEIGHTS = MetricSpec(
    names.CAIRN_MODEL_WEIGHTS, MetricKind.OBSERVED_GAUGE, "By", "Resident weights of the loaded models.", _MODEL
)

READY = _gauge(names.CAIRN_READY, "1", "1 while a model is served and the engine moves, as /health/ready says, else 0.")
ENGINE_STEP_AGE = _gauge(
    names.CAIRN_ENGINE_STEP_AGE, "s", "Since the last engine step ended, while requests are open; 0 without any."
)

REQUESTS_ENDED = MetricSpec(
    names.CAIRN_REQUESTS_ENDED,
    MetricKind.COUNTER,
    "{request}",
    "Requests that ended, by reason: stop, tool_calls, length, cancelled or error.",
    (*_MODEL, names.CAIRN_REASON, names.ERROR_TYPE),
)
REQUESTS_REFUSED = MetricSpec(
    names.CAIRN_REQUESTS_REFUSED,
    MetricKind.COUNTER,
    "{request}",
    "Requests turned away before they were queued.",
    (names.GEN_AI_REQUEST_MODEL, names.ERROR_TYPE),
)
REQUESTS_PREEMPTED = MetricSpec(
    names.CAIRN_REQUESTS_PREEMPTED,
    MetricKind.COUNTER,
    "{request}",
    "Running requests that gave their memory back, to go on later.",
    _MODEL,
)
HTTP_REFUSED = MetricSpec(
    names.CAIRN_HTTP_REFUSED,
    MetricKind.COUNTER,
    "{request}",
    "Requests and connections turned away or cut off before their body was looked at, and what a key does not allow.",
    (names.CAIRN_REASON,),
)
PROMPT_TOKENS = MetricSpec(
    names.CAIRN_PROMPT_TOKENS,
    MetricKind.COUNTER,
    "{token}",
    "Tokens prefilled or reused, by origin: computed, hot (from the hot tier), store (from the store, or the queue to"
    " it), or recomputed (of a prompt and its answer, after a preemption).",
    (*_MODEL, names.CAIRN_ORIGIN),
)
OUTPUT_TOKENS = MetricSpec(
    names.CAIRN_OUTPUT_TOKENS, MetricKind.COUNTER, "{token}", "Tokens of ended completions.", _MODEL
)
TOOL_CALL_PROBLEMS = MetricSpec(
    names.CAIRN_TOOL_CALL_PROBLEMS,
    MetricKind.COUNTER,
    "{call}",
    "Tool calls that cannot be run as they are: unknown_tool, malformed_arguments or schema_mismatch.",
    (names.CAIRN_KIND,),
)
TOOL_CALLS = _counter(names.CAIRN_TOOL_CALLS, "{call}", "Tool calls read out of answers.", names.CAIRN_PARSER)
PARSER_FAILURES = _counter(
    names.CAIRN_PARSER_FAILURES, "{request}", "Answers that their parser failed on.", names.CAIRN_PARSER
)
STEP_TOKENS = MetricSpec(
    names.CAIRN_STEP_TOKENS,
    MetricKind.OBSERVED_COUNTER,
    "{token}",
    "Tokens that engine steps computed, by phase: prefill or decode.",
    (names.CAIRN_STEP_PHASE,),
)
PREFIX_LOOKUPS = MetricSpec(
    names.CAIRN_PREFIX_LOOKUPS,
    MetricKind.COUNTER,
    "{lookup}",
    "Prefix lookups by what came of them (full: all that can be reused; partial; none), and why they reused no more.",
    (names.CAIRN_RESULT, names.CAIRN_STOP_REASON),
)
PREFIX_LOOKUP_TIME = _histogram(
    names.CAIRN_PREFIX_LOOKUP_TIME, "From looking a prefix up to what is reused being in place.", (), _STEP_BUCKETS
)
PREFIX_AWAITED = MetricSpec(
    names.CAIRN_PREFIX_AWAITED,
    MetricKind.COUNTER,
    "{request}",
    "Requests that waited for another one computing the same prefix.",
)
RESTORE_TIME = _histogram(names.CAIRN_RESTORE_TIME, "From fetching state to restored.", (), _STEP_BUCKETS)
RESTORED = _counter(names.CAIRN_RESTORED, "By", "Bytes of state restored, by tier.", names.CAIRN_TIER)
CAPTURE_TIME = _histogram(names.CAIRN_CAPTURE_TIME, "Time a capture took of the compute thread.", (), _STEP_BUCKETS)
CAPTURED = MetricSpec(names.CAIRN_CAPTURED, MetricKind.COUNTER, "By", "Bytes of state captured.")
STORE_RECORDS = MetricSpec(
    names.CAIRN_STORE_RECORDS,
    MetricKind.COUNTER,
    "{record}",
    "Blocks and snapshots by outcome: persisted, dropped or evicted (with the reason).",
    (names.CAIRN_OUTCOME, names.CAIRN_REASON),
)
STORE_WRITTEN = MetricSpec(names.CAIRN_STORE_WRITTEN, MetricKind.COUNTER, "By", "Bytes persisted, before encoding.")
STORE_QUEUED = MetricSpec(
    names.CAIRN_STORE_QUEUED, MetricKind.OBSERVED_GAUGE, "By", "Bytes that waited for the writer at its last batch."
)
STORE_WRITE_TIME = _histogram(names.CAIRN_STORE_WRITE_TIME, "Time to persist one batch.", (), _STEP_BUCKETS)
STORE_WRITE_LAG = _histogram(
    names.CAIRN_STORE_WRITE_LAG, "From state being captured to its being in the store.", (), _LAG_BUCKETS
)
STORE_READ_TIME = _histogram(names.CAIRN_STORE_READ_TIME, "Time to read some records.", (), _STEP_BUCKETS)
STORE_READ = _counter(names.CAIRN_STORE_READ, "By", "Bytes read from the store, decoded.")
STORE_READ_RECORDS = _counter(
    names.CAIRN_STORE_READ_RECORDS,
    "{record}",
    "Records that were asked of the store, by outcome: found or missing.",
    names.CAIRN_OUTCOME,
)
CACHE_RECORDS = _gauge(
    names.CAIRN_CACHE_RECORDS,
    "{record}",
    "What a tier holds, by kind: block or snapshot.",
    names.CAIRN_TIER,
    names.CAIRN_KIND,
)
CACHE_USED = _gauge(names.CAIRN_CACHE_USED, "By", "Bytes that a tier holds, as they lie there.", names.CAIRN_TIER)
CACHE_LIMIT = _gauge(
    names.CAIRN_CACHE_LIMIT, "By", "Bytes that a tier may hold: the hot tier's budget, the quota.", names.CAIRN_TIER
)
CACHE_EVICTED = MetricSpec(
    names.CAIRN_CACHE_EVICTED,
    MetricKind.OBSERVED_COUNTER,
    "{record}",
    "Records that a tier let go, to have room or for their age.",
    (names.CAIRN_TIER, names.CAIRN_REASON),
)
MEMORY_USED = MetricSpec(
    names.CAIRN_MEMORY_USED,
    MetricKind.OBSERVED_GAUGE,
    "By",
    "Memory by purpose: weight, state, hot, queued, flight, other; growth and transient are promised; reading is what"
    " was read to be used.",
    (names.CAIRN_PURPOSE,),
)
MEMORY_LIMIT = MetricSpec(
    names.CAIRN_MEMORY_LIMIT,
    MetricKind.OBSERVED_GAUGE,
    "By",
    "What may be held: total, and the marks low, high and hard.",
    (names.CAIRN_MARK,),
)
MEMORY_LEVEL = MetricSpec(
    names.CAIRN_MEMORY_LEVEL,
    MetricKind.OBSERVED_GAUGE,
    "{level}",
    "Memory pressure: 0 calm, 1 hot tier smaller, 2 chunks shorter, 3 admission paused, 4 preempting, 5 refusing.",
)
MEMORY_ACTIONS = MetricSpec(
    names.CAIRN_MEMORY_ACTIONS,
    MetricKind.COUNTER,
    "{action}",
    "What was done about memory: clear_cache, shrink_hot, grow_hot, shrink_chunk, grow_chunk, pause, resume, preempt or"
    " refuse.",
    (names.CAIRN_KIND,),
)
ENGINE_STUCK = MetricSpec(
    names.CAIRN_ENGINE_STUCK,
    MetricKind.OBSERVED_GAUGE,
    "{thread}",
    "What does not move now: 0 nothing, 1 the engine or the event loop, 2 both.",
)
ENGINE_WEDGES = MetricSpec(
    names.CAIRN_ENGINE_WEDGES,
    MetricKind.COUNTER,
    "{wedge}",
    "Times something was seen to be stuck, by in what: prefill, decode, load, waiting, ended, event loop, ...",
    (names.CAIRN_KIND,),
)
ENGINE_RESTARTS = MetricSpec(
    names.CAIRN_ENGINE_RESTARTS,
    MetricKind.COUNTER,
    "{restart}",
    "Engines that took over from one that was lost.",
)
ENGINE_DOWN_TIME = _histogram(
    names.CAIRN_ENGINE_DOWN_TIME, "From the loss of an engine until another one took over.", (), _DURATION_BUCKETS
)
FAULTS = MetricSpec(
    names.CAIRN_FAULTS, MetricKind.COUNTER, "{fault}", "Faults that were contained.", (names.CAIRN_WHERE,)
)
TELEMETRY_FAILURES = MetricSpec(
    names.CAIRN_TELEMETRY_FAILURES,
    MetricKind.OBSERVED_COUNTER,
    "{event}",
    "Events that telemetry could not take.",
    (names.CAIRN_EVENT,),
)

CATALOGUE = (
    *(REQUEST_DURATION, TIME_TO_FIRST_TOKEN, TIME_PER_OUTPUT_TOKEN, INTER_TOKEN_LATENCY),
    *(QUEUE_TIME, PREFILL_TIME, DECODE_TIME),
    *(REQUESTS_WAITING, REQUESTS_WAITING_FOR, REQUESTS_RUNNING, REQUESTS_ENDED, REQUESTS_REFUSED),
    *(REQUESTS_PREEMPTED, HTTP_REFUSED, PROMPT_TOKENS, OUTPUT_TOKENS),
    *(PARSE_TIME, TOOL_CALLS, TOOL_CALL_PROBLEMS, PARSER_FAILURES),
    *(STEP_DURATION, STEP_BATCH, STEP_TOKENS),
    *(READY, ENGINE_STUCK, ENGINE_WEDGES, ENGINE_STEP_AGE, ENGINE_RESTARTS, ENGINE_DOWN_TIME),
    *(MODELS_LOADED, MODEL_WEIGHTS, MODEL_LOAD_TIME),
    *(PREFIX_LOOKUPS, PREFIX_LOOKUP_TIME, PREFIX_AWAITED, RESTORE_TIME, RESTORED, CAPTURE_TIME, CAPTURED),
    *(CACHE_RECORDS, CACHE_USED, CACHE_LIMIT, CACHE_EVICTED),
    *(STORE_RECORDS, STORE_WRITTEN, STORE_QUEUED, STORE_WRITE_TIME, STORE_WRITE_LAG),
    *(STORE_READ, STORE_READ_RECORDS, STORE_READ_TIME),
    *(MEMORY_USED, MEMORY_LIMIT, MEMORY_LEVEL, MEMORY_ACTIONS, FAULTS, TELEMETRY_FAILURES),
)

__all__ = (
    "CACHE_EVICTED",
    "CACHE_LIMIT",
    "CACHE_RECORDS",
    "CACHE_USED",
    "CAPTURED",
    "CAPTURE_TIME",
    "CATALOGUE",
    "DECODE_TIME",
    "ENGINE_DOWN_TIME",
    "ENGINE_RESTARTS",
    "ENGINE_STEP_AGE",
    "ENGINE_STUCK",
    "ENGINE_WEDGES",
    "FAULTS",
    "HTTP_REFUSED",
    "INTER_TOKEN_LATENCY",
    "MEMORY_ACTIONS",
    "MEMORY_LEVEL",
    "MEMORY_LIMIT",
    "MEMORY_USED",
    "MODELS_LOADED",
    "MODEL_LOAD_TIME",
    "MODEL_WEIGHTS",
    "OUTPUT_TOKENS",
    "PARSER_FAILURES",
    "PARSE_TIME",
    "PREFILL_TIME",
    "PREFIX_AWAITED",
    "PREFIX_LOOKUPS",
    "PREFIX_LOOKUP_TIME",
    "PROMPT_TOKENS",
    "QUEUE_TIME",
    "READY",
    "REQUESTS_ENDED",
    "REQUESTS_PREEMPTED",
    "REQUESTS_REFUSED",
    "REQUESTS_RUNNING",
    "REQUESTS_WAITING",
    "REQUESTS_WAITING_FOR",
    "REQUEST_DURATION",
    "RESTORED",
    "RESTORE_TIME",
    "STEP_BATCH",
    "STEP_DURATION",
    "STEP_TOKENS",
    "STORE_QUEUED",
    "STORE_READ",
    "STORE_READ_RECORDS",
    "STORE_READ_TIME",
    "STORE_RECORDS",
    "STORE_WRITE_LAG",
    "STORE_WRITE_TIME",
    "STORE_WRITTEN",
    "TELEMETRY_FAILURES",
    "TIME_PER_OUTPUT_TOKEN",
    "TIME_TO_FIRST_TOKEN",
    "TOOL_CALLS",
    "TOOL_CALL_PROBLEMS",
)
