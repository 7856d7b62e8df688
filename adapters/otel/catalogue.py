"""The metrics of Cairn, as data: one value of this module, one instrument. `metrics` says which events feed them.

Names follow the GenAI semantic conventions or begin with `cairn.`; units are in UCUM, buckets in seconds.
"""

from dataclasses import dataclass
from enum import Enum

from adapters.otel import semconv as names


class MetricKind(Enum):
    """A COUNTER only grows, an UP_DOWN also shrinks, a GAUGE is replaced, a HISTOGRAM counts values into buckets."""

    COUNTER = "counter"
    UP_DOWN = "up-down counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `buckets`: upper bounds, for histograms only. `attributes`: every attribute that a point may carry."""

    kind: MetricKind
    name: str
    unit: str
    description: str
    attributes: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _counter(name: str, unit: str, description: str, *attributes: str) -> Metric:
    return Metric(MetricKind.COUNTER, name, unit, description, attributes)


def _gauge(name: str, unit: str, description: str, *attributes: str) -> Metric:
    return Metric(MetricKind.GAUGE, name, unit, description, attributes)


def _histogram(name: str, description: str, buckets: tuple[float, ...], *attributes: str) -> Metric:
    return Metric(MetricKind.HISTOGRAM, name, "s", description, attributes, buckets)


DURATION_BUCKETS = tuple(round(0.01 * 2**n, 2) for n in range(14))
FIRST_TOKEN_BUCKETS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),  # long prompts on small machines
)
OUTPUT_TOKEN_BUCKETS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
INTER_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, *OUTPUT_TOKEN_BUCKETS, 5.0, 10.0, 30.0)
STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_BUCKETS = (*STEP_BUCKETS, 30.0, 60.0, 300.0)

_MODEL = names.GEN_AI_RESPONSE_MODEL
_REQUEST = (names.GEN_AI_OPERATION_NAME, names.GEN_AI_PROVIDER_NAME, names.GEN_AI_REQUEST_MODEL, _MODEL)

# Requests
REQUEST_DURATION = _histogram(
    *("gen_ai.server.request.duration", "From queued to the last token.", DURATION_BUCKETS),
    *(*_REQUEST, names.ERROR_TYPE),
)
TIME_TO_FIRST_TOKEN = _histogram(
    "gen_ai.server.time_to_first_token", "From queued to the first token.", FIRST_TOKEN_BUCKETS, *_REQUEST
)
TIME_PER_OUTPUT_TOKEN = _histogram(
    "gen_ai.server.time_per_output_token",
    "Mean time per output token after the first, for requests that did not fail.",
    *(OUTPUT_TOKEN_BUCKETS, *_REQUEST),
)
INTER_TOKEN_LATENCY = _histogram(
    "cairn.inter_token.latency",
    "Time a token between two deliveries of an answer; sequences that decode together count once.",
    *(INTER_TOKEN_BUCKETS, _MODEL),
)
QUEUE_TIME = _histogram("cairn.queue.time", "Time spent waiting for admission.", FIRST_TOKEN_BUCKETS, _MODEL)
PREFILL_TIME = _histogram("cairn.prefill.time", "From admission to decode.", FIRST_TOKEN_BUCKETS, _MODEL)
DECODE_TIME = _histogram("cairn.decode.time", "From decode to the end.", FIRST_TOKEN_BUCKETS, _MODEL)
REQUESTS_WAITING = _gauge("cairn.requests.waiting", "{request}", "Requests waiting for admission.", _MODEL)
REQUESTS_WAITING_FOR = _gauge(
    *("cairn.requests.waiting_for", "{request}"),
    "Requests in the queue by what they wait for: a place, memory or a prefix that is computed.",
    names.CAIRN_REASON,
)
REQUESTS_RUNNING = _gauge("cairn.requests.running", "{request}", "Requests in prefill or decode.", _MODEL)
REQUESTS_ENDED = _counter(
    *("cairn.requests.ended", "{request}"),
    "Requests that ended, by reason: stop, tool_calls, length, cancelled or error.",
    *(_MODEL, names.CAIRN_REASON, names.ERROR_TYPE),
)
REQUESTS_REFUSED = _counter(
    *("cairn.requests.refused", "{request}", "Requests refused before they were queued."),
    *(names.GEN_AI_REQUEST_MODEL, names.ERROR_TYPE),
)
REQUESTS_PREEMPTED = _counter(
    "cairn.requests.preempted", "{request}", "Running requests that were preempted and resumed later.", _MODEL
)
PROMPT_TOKENS = _counter(
    *("cairn.prompt.tokens", "{token}"),
    "Tokens prefilled or reused, by origin: computed, live (the state that the turn before left), hot (from the hot"
    " tier), store (from the store, or the queue to it), shared (from the shared store), or recomputed (of a prompt"
    " and its answer, after a preemption).",
    *(_MODEL, names.CAIRN_ORIGIN),
)
OUTPUT_TOKENS = _counter("cairn.output.tokens", "{token}", "Tokens of ended completions.", _MODEL)
PROPOSED_TOKENS = _counter(
    *("cairn.speculation.proposed_tokens", "{token}"),
    "Draft tokens of ended completions that were verified, by drafter: ngram, prediction, mtp or draft.",
    *(_MODEL, names.CAIRN_DRAFTER),
)
ACCEPTED_TOKENS = _counter(
    *("cairn.speculation.accepted_tokens", "{token}", "Those of them that were accepted, and are output tokens."),
    *(_MODEL, names.CAIRN_DRAFTER),
)
PREFIX_LOOKUPS = _counter(
    *("cairn.prefix.lookups", "{lookup}"),
    "Requests by the result of their prefix lookup (full: all that can be reused; partial; none), and why no more.",
    *(names.CAIRN_RESULT, names.CAIRN_STOP_REASON),
)
IMAGE_TOKENS = _counter(
    *("cairn.image.tokens", "{token}", "Prompt tokens of images by origin: computed, or reused with their prefix."),
    *(_MODEL, names.CAIRN_ORIGIN),
)
TOOL_CALL_PROBLEMS = _counter(
    *("cairn.tool_call.problems", "{call}"),
    "Tool calls that cannot be run as they are: unknown_tool, malformed_arguments or schema_mismatch.",
    names.CAIRN_KIND,
)
TOOL_TIME = _histogram(
    "cairn.tool.time",
    "Duration of a call of a tool server's tool; with the error where it failed.",
    *(DURATION_BUCKETS, names.CAIRN_TOOL_SERVER, names.GEN_AI_TOOL_NAME, names.ERROR_TYPE),
)
REPETITIONS = _counter(
    *("cairn.repetitions", "{request}", "Answers that were ended because they repeated themselves.", _MODEL),
)
PARSER_FAILURES = _counter(
    "cairn.parser.failures", "{request}", "Answers that their parser failed on.", names.CAIRN_PARSER
)
HTTP_REFUSED = _counter(
    *("cairn.http.refused", "{request}"),
    "Requests and connections refused or cut off before their body was read, or because of the limits of a key.",
    names.CAIRN_REASON,
)

# Engine
STEP_DURATION = _histogram("cairn.step.duration", "Duration of an engine step.", STEP_BUCKETS)
FAULTS = _counter("cairn.faults", "{fault}", "Faults that were contained.", names.CAIRN_WHERE)
READY = _gauge(
    "cairn.ready",
    "1",
    "1 while a model is served, the engine moves and the server does not drain, as /health/ready says, else 0.",
)
ENGINE_STUCK = Metric(
    *(MetricKind.UP_DOWN, "cairn.engine.stuck", "{thread}"),
    "What is stuck now: 0 nothing, 1 the engine or the event loop, 2 both.",
)
ENGINE_RESTARTS = _counter("cairn.engine.restarts", "{restart}", "Engines that took over from one that was lost.")

# Prefix cache and store
RESTORE_TIME = _histogram("cairn.restore.time", "From fetching state to restored.", STEP_BUCKETS)
TIME_SAVED = Metric(
    *(MetricKind.UP_DOWN, "cairn.cache.saved", "s"),
    "Time that computing reused tokens would have taken, by the measured pace of their model and depth, less that of"
    " restoring them; less than zero where computing is faster.",
    (names.CAIRN_TIER,),
)
UNPRICED_TOKENS = _counter(
    "cairn.cache.unpriced", "{token}", "Reused tokens that count for nothing there: their model had no measured pace."
)
CACHE_USED = _gauge("cairn.cache.used", "By", "Bytes that a tier holds, as encoded there.", names.CAIRN_TIER)
CACHE_LIMIT = _gauge(
    "cairn.cache.limit", "By", "Bytes that a tier may hold: the hot tier's budget, the quota.", names.CAIRN_TIER
)
CACHE_EVICTED = _counter(
    *("cairn.cache.evicted", "{record}", "Records that a tier evicted, for room or by age."),
    *(names.CAIRN_TIER, names.CAIRN_REASON),
)
STORE_RECORDS = _counter(
    *("cairn.store.records", "{record}", "Blocks and snapshots by outcome: persisted, or dropped with the reason."),
    *(names.CAIRN_OUTCOME, names.CAIRN_REASON),
)
STORE_LAG = _gauge("cairn.store.lag", "s", "Age of the oldest state that waits for the store.")
STORE_WRITE_LAG = _histogram(
    "cairn.store.write.lag", "From state being captured to its being in the store.", LAG_BUCKETS
)
SHARED_TIME = _histogram(
    *("cairn.shared.time", "Duration of a call of the shared store: ask, read or write, by outcome.", STEP_BUCKETS),
    *(names.CAIRN_OPERATION, names.CAIRN_OUTCOME),
)
SHARED_RECORDS = _counter(
    *("cairn.shared.records", "{record}"),
    "Records of the shared store by operation and outcome: found, read, missing, rejected, late, written, present"
    " (another server wrote it), or the reason of a failure or a drop.",
    *(names.CAIRN_OPERATION, names.CAIRN_OUTCOME),
)
SHARED_AVAILABLE = _gauge("cairn.shared.available", "1", "1 while the shared store is asked, 0 after it failed.")
KV_EVENT_BATCHES = _counter(
    *("cairn.kv_events.batches", "{batch}"),
    "Batches of KV events by outcome: sent, lost (a subscriber's queue was full), replayed (a consumer asked for the"
    " state) or unread.",
    names.CAIRN_OUTCOME,
)
KV_EVENT_SUBSCRIBERS = _gauge("cairn.kv_events.subscribers", "{subscriber}", "Subscribers of the KV events.")

# Memory
MEMORY_USED = _gauge(
    *("cairn.memory.used", "By"),
    "Memory by purpose: weight, state, live, hot, queued, flight, other; growth and transient are reserved; reading is"
    " the use that the system reported.",
    names.CAIRN_PURPOSE,
)
MEMORY_LIMIT = _gauge(
    "cairn.memory.limit", "By", "Limits of memory: total, and the marks low, high and hard.", names.CAIRN_MARK
)
KV_USAGE = _gauge(
    *("cairn.kv.usage", "1"),
    "Share of the memory for states of sequences, 0 to 1, that open requests hold or are promised.",
)
KV_BLOCK_SIZE = _gauge("cairn.kv.block_size", "{token}", "Tokens of a block, in which prompts are matched.")
KV_BLOCKS = _gauge(
    *("cairn.kv.blocks", "{block}", "Blocks of a model for which there is memory, loaded models left out; 0: unknown."),
    _MODEL,
)
MEMORY_LEVEL = _gauge(
    *("cairn.memory.level", "{level}"),
    "Memory pressure: 0 calm, 1 lean (the hot tier is smaller), 2 paused (no request is admitted), 3 preempting,"
    " 4 refusing.",
)
MEMORY_ACTIONS = _counter(
    *("cairn.memory.actions", "{action}"),
    "Actions against memory pressure: clear_cache, drop_features, drop_live, shrink_hot, grow_hot, pause, resume,"
    " preempt or refuse.",
    names.CAIRN_KIND,
)
TELEMETRY_FAILURES = _counter(
    "cairn.telemetry.failures", "{event}", "Events that telemetry could not take.", names.CAIRN_EVENT
)

CATALOGUE = tuple(value for value in globals().values() if isinstance(value, Metric))
"""Every metric of this module."""
