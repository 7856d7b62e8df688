"""The metrics of requests, as data: `request_metrics` feeds them."""

from adapters.otel import semconv as names
from adapters.otel.metrics.metric_spec import (
    DURATION_BUCKETS,
    FIRST_TOKEN_BUCKETS,
    OUTPUT_TOKEN_BUCKETS,
    counter,
    gauge,
    histogram,
)

_REQUEST = (
    names.GEN_AI_OPERATION_NAME,
    names.GEN_AI_PROVIDER_NAME,
    names.GEN_AI_REQUEST_MODEL,
    names.GEN_AI_RESPONSE_MODEL,
)

REQUEST_DURATION = histogram(
    names.GEN_AI_SERVER_REQUEST_DURATION,
    "s",
    "From queued to the last token.",
    DURATION_BUCKETS,
    *_REQUEST,
    names.ERROR_TYPE,
)
TIME_TO_FIRST_TOKEN = histogram(
    names.GEN_AI_SERVER_TIME_TO_FIRST_TOKEN, "s", "From queued to the first token.", FIRST_TOKEN_BUCKETS, *_REQUEST
)
TIME_PER_OUTPUT_TOKEN = histogram(
    names.GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
    "s",
    "Mean time per output token after the first, for requests that did not fail.",
    OUTPUT_TOKEN_BUCKETS,
    *_REQUEST,
)
INTER_TOKEN_LATENCY = histogram(
    names.CAIRN_INTER_TOKEN_LATENCY,
    "s",
    "Time a token between two deliveries of an answer; sequences that decode together count once.",
    (0.001, 0.0025, 0.005, *OUTPUT_TOKEN_BUCKETS, 5.0, 10.0, 30.0),
    names.GEN_AI_RESPONSE_MODEL,
)
QUEUE_TIME = histogram(
    names.CAIRN_QUEUE_TIME, "s", "Time spent waiting for admission.", FIRST_TOKEN_BUCKETS, names.GEN_AI_RESPONSE_MODEL
)
PREFILL_TIME = histogram(
    names.CAIRN_PREFILL_TIME, "s", "From admission to decode.", FIRST_TOKEN_BUCKETS, names.GEN_AI_RESPONSE_MODEL
)
DECODE_TIME = histogram(
    names.CAIRN_DECODE_TIME, "s", "From decode to the end.", FIRST_TOKEN_BUCKETS, names.GEN_AI_RESPONSE_MODEL
)
REQUESTS_WAITING = gauge(
    names.CAIRN_REQUESTS_WAITING, "{request}", "Requests waiting for admission.", names.GEN_AI_RESPONSE_MODEL
)
REQUESTS_WAITING_FOR = gauge(
    names.CAIRN_REQUESTS_WAITING_FOR,
    "{request}",
    "Requests in the queue by what they wait for: a place, memory or a prefix that is computed.",
    names.CAIRN_REASON,
)
REQUESTS_RUNNING = gauge(
    names.CAIRN_REQUESTS_RUNNING, "{request}", "Requests in prefill or decode.", names.GEN_AI_RESPONSE_MODEL
)
REQUESTS_ENDED = counter(
    names.CAIRN_REQUESTS_ENDED,
    "{request}",
    "Requests that ended, by reason: stop, tool_calls, length, cancelled or error.",
    names.GEN_AI_RESPONSE_MODEL,
    names.CAIRN_REASON,
    names.ERROR_TYPE,
)
REQUESTS_REFUSED = counter(
    names.CAIRN_REQUESTS_REFUSED,
    "{request}",
    "Requests turned away before they were queued.",
    names.GEN_AI_REQUEST_MODEL,
    names.ERROR_TYPE,
)
REQUESTS_PREEMPTED = counter(
    names.CAIRN_REQUESTS_PREEMPTED,
    "{request}",
    "Running requests that gave their memory back, to go on later.",
    names.GEN_AI_RESPONSE_MODEL,
)
PROMPT_TOKENS = counter(
    names.CAIRN_PROMPT_TOKENS,
    "{token}",
    "Tokens prefilled or reused, by origin: computed, live (the state that the turn before left), hot (from the hot"
    " tier), store (from the store, or the queue to it), or recomputed (of a prompt and its answer, after a"
    " preemption).",
    names.GEN_AI_RESPONSE_MODEL,
    names.CAIRN_ORIGIN,
)
OUTPUT_TOKENS = counter(
    names.CAIRN_OUTPUT_TOKENS, "{token}", "Tokens of ended completions.", names.GEN_AI_RESPONSE_MODEL
)
PREFIX_LOOKUPS = counter(
    names.CAIRN_PREFIX_LOOKUPS,
    "{lookup}",
    "Requests by what their prefix lookup found (full: all that can be reused; partial; none), and why no more.",
    names.CAIRN_RESULT,
    names.CAIRN_STOP_REASON,
)
TOOL_CALL_PROBLEMS = counter(
    names.CAIRN_TOOL_CALL_PROBLEMS,
    "{call}",
    "Tool calls that cannot be run as they are: unknown_tool, malformed_arguments or schema_mismatch.",
    names.CAIRN_KIND,
)
PARSER_FAILURES = counter(
    names.CAIRN_PARSER_FAILURES, "{request}", "Answers that their parser failed on.", names.CAIRN_PARSER
)
ENGINE_STEP_AGE = gauge(
    names.CAIRN_ENGINE_STEP_AGE, "s", "Since the last engine step ended, while requests are open; 0 without any."
)

METRICS = (
    REQUEST_DURATION,
    TIME_TO_FIRST_TOKEN,
    TIME_PER_OUTPUT_TOKEN,
    INTER_TOKEN_LATENCY,
    QUEUE_TIME,
    PREFILL_TIME,
    DECODE_TIME,
    REQUESTS_WAITING,
    REQUESTS_WAITING_FOR,
    REQUESTS_RUNNING,
    REQUESTS_ENDED,
    REQUESTS_REFUSED,
    REQUESTS_PREEMPTED,
    PROMPT_TOKENS,
    OUTPUT_TOKENS,
    PREFIX_LOOKUPS,
    TOOL_CALL_PROBLEMS,
    PARSER_FAILURES,
    ENGINE_STEP_AGE,
)
