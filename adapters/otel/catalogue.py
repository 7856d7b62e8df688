"""The metrics Cairn has, as data: one entry, one instrument. Buckets in seconds; units in UCUM, as OpenTelemetry asks.

The documentation, the dashboard and the tests read this catalogue, so a metric they name and nobody feeds is an error.
"""

from dataclasses import dataclass
from enum import Enum

from adapters.otel import semconv as names


class MetricKind(Enum):
    """COUNTER only grows. HISTOGRAM counts values into buckets. The others are read when metrics are collected."""

    COUNTER = "counter"
    OBSERVED_COUNTER = "observed counter"
    OBSERVED_GAUGE = "observed gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """`buckets`: upper bounds, for histograms only. `attributes`: every attribute a point may carry."""

    name: str
    kind: MetricKind
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_DURATION_BUCKETS = tuple(round(0.01 * 2**n, 2) for n in range(14))
_FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),  # long prompts on small machines
)
_OUTPUT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

_MODEL = (names.GEN_AI_RESPONSE_MODEL,)
_REQUEST = (
    names.GEN_AI_OPERATION_NAME,
    names.GEN_AI_PROVIDER_NAME,
    names.GEN_AI_REQUEST_MODEL,
    names.GEN_AI_RESPONSE_MODEL,
)


def _histogram(name: str, description: str, attributes: tuple[str, ...], buckets: tuple[float, ...]) -> MetricSpec:
    return MetricSpec(name, MetricKind.HISTOGRAM, "s", description, attributes, buckets)


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
STEP_DURATION = _histogram(names.CAIRN_STEP_DURATION, "Duration of an engine step.", (), _STEP_BUCKETS)
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
    "Prefix lookups by why they reused no more.",
    (names.CAIRN_STOP_REASON,),
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
RESTORED = MetricSpec(names.CAIRN_RESTORED, MetricKind.COUNTER, "By", "Bytes of state restored.")
CAPTURE_TIME = _histogram(names.CAIRN_CAPTURE_TIME, "Time a capture took of the compute thread.", (), _STEP_BUCKETS)
CAPTURED = MetricSpec(names.CAIRN_CAPTURED, MetricKind.COUNTER, "By", "Bytes of state captured.")
STORE_RECORDS = MetricSpec(
    names.CAIRN_STORE_RECORDS,
    MetricKind.COUNTER,
    "{record}",
    "Blocks and snapshots by outcome: persisted, dropped (with the reason) or evicted.",
    (names.CAIRN_OUTCOME, names.CAIRN_REASON),
)
STORE_WRITTEN = MetricSpec(names.CAIRN_STORE_WRITTEN, MetricKind.COUNTER, "By", "Bytes persisted, before encoding.")
STORE_QUEUED = MetricSpec(
    names.CAIRN_STORE_QUEUED, MetricKind.OBSERVED_GAUGE, "By", "Bytes that waited for the writer at its last batch."
)
STORE_WRITE_TIME = _histogram(names.CAIRN_STORE_WRITE_TIME, "Time to persist one batch.", (), _STEP_BUCKETS)
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
    *(REQUEST_DURATION, TIME_TO_FIRST_TOKEN, TIME_PER_OUTPUT_TOKEN, QUEUE_TIME, PREFILL_TIME, DECODE_TIME),
    *(REQUESTS_WAITING, REQUESTS_WAITING_FOR, REQUESTS_RUNNING, REQUESTS_ENDED, REQUESTS_REFUSED),
    *(REQUESTS_PREEMPTED, HTTP_REFUSED, PROMPT_TOKENS, OUTPUT_TOKENS),
    *(TOOL_CALL_PROBLEMS, STEP_DURATION, STEP_TOKENS, MODELS_LOADED, MODEL_WEIGHTS, MODEL_LOAD_TIME),
    *(PREFIX_LOOKUPS, PREFIX_LOOKUP_TIME, PREFIX_AWAITED, RESTORE_TIME, RESTORED, CAPTURE_TIME, CAPTURED),
    *(STORE_RECORDS, STORE_WRITTEN, STORE_QUEUED, STORE_WRITE_TIME),
    *(
        MEMORY_USED,
        MEMORY_LIMIT,
        MEMORY_LEVEL,
        MEMORY_ACTIONS,
        ENGINE_STUCK,
        ENGINE_WEDGES,
        ENGINE_RESTARTS,
        ENGINE_DOWN_TIME,
    ),
    *(FAULTS, TELEMETRY_FAILURES),
)

__all__ = (
    "CAPTURED",
    "CAPTURE_TIME",
    "CATALOGUE",
    "DECODE_TIME",
    "ENGINE_STUCK",
    "ENGINE_WEDGES",
    "FAULTS",
    "HTTP_REFUSED",
    "MEMORY_ACTIONS",
    "MEMORY_LEVEL",
    "MEMORY_LIMIT",
    "MEMORY_USED",
    "MODELS_LOADED",
    "MODEL_LOAD_TIME",
    "MODEL_WEIGHTS",
    "OUTPUT_TOKENS",
    "PREFILL_TIME",
    "PREFIX_AWAITED",
    "PREFIX_LOOKUPS",
    "PREFIX_LOOKUP_TIME",
    "PROMPT_TOKENS",
    "QUEUE_TIME",
    "REQUESTS_ENDED",
    "REQUESTS_PREEMPTED",
    "REQUESTS_REFUSED",
    "REQUESTS_RUNNING",
    "REQUESTS_WAITING",
    "REQUESTS_WAITING_FOR",
    "REQUEST_DURATION",
    "RESTORED",
    "RESTORE_TIME",
    "STEP_DURATION",
    "STEP_TOKENS",
    "STORE_QUEUED",
    "STORE_RECORDS",
    "STORE_WRITE_TIME",
    "STORE_WRITTEN",
    "TELEMETRY_FAILURES",
    "TIME_PER_OUTPUT_TOKEN",
    "TIME_TO_FIRST_TOKEN",
    "TOOL_CALL_PROBLEMS",
    "MetricKind",
    "MetricSpec",
)
