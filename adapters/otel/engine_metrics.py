"""Metrics of the engine and the socket: steps, models, faults, what was turned away."""

from collections.abc import Iterable, Mapping

from adapters.otel import semconv as names
from adapters.otel.buckets import BATCH_BUCKETS, FIRST_TOKEN_BUCKETS, STEP_BUCKETS
from adapters.otel.instruments import Attributes, Instruments
from adapters.otel.metric_spec import counter, gauge, histogram, observed_counter, tally
from application.events import FaultObserved, HttpRefused, ModelLoaded, ModelUnloaded, StepCompleted, StoreFault
from application.services.event_router import Handler
from domain.ids import ModelId

HTTP_REFUSED = counter(
    names.CAIRN_HTTP_REFUSED,
    "{request}",
    "Requests and connections turned away or cut off before their body was looked at, and what a key does not allow.",
    names.CAIRN_REASON,
)
STEP_DURATION = tally(names.CAIRN_STEP_DURATION, "s", "Duration of an engine step.", STEP_BUCKETS)
STEP_BATCH = tally(names.CAIRN_STEP_BATCH, "{token}", "Tokens decoded in one engine step.", BATCH_BUCKETS)
STEP_TOKENS = observed_counter(
    names.CAIRN_STEP_TOKENS,
    "{token}",
    "Tokens that engine steps computed, by phase: prefill or decode.",
    names.CAIRN_STEP_PHASE,
)
MODELS_LOADED = gauge(names.CAIRN_MODELS_LOADED, "{model}", "Models loaded now.")
MODEL_WEIGHTS = gauge(
    names.CAIRN_MODEL_WEIGHTS, "By", "Resident weights of the loaded models.", names.GEN_AI_RESPONSE_MODEL
)
MODEL_LOAD_TIME = histogram(
    names.CAIRN_MODEL_LOAD_TIME, "s", "Time to load a model.", FIRST_TOKEN_BUCKETS, names.GEN_AI_RESPONSE_MODEL
)
FAULTS = counter(names.CAIRN_FAULTS, "{fault}", "Faults that were contained.", names.CAIRN_WHERE)

METRICS = (
    HTTP_REFUSED,
    STEP_DURATION,
    STEP_BATCH,
    STEP_TOKENS,
    MODELS_LOADED,
    MODEL_WEIGHTS,
    MODEL_LOAD_TIME,
    FAULTS,
)

_PREFILL_STEP = {names.CAIRN_STEP_PHASE: "prefill"}
_DECODE_STEP = {names.CAIRN_STEP_PHASE: "decode"}


class EngineMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._weight_bytes: dict[ModelId, int] = {}
        # Summed here and read when metrics are collected: two counter additions a step would cost many times that.
        self._num_prefill_tokens = 0
        self._num_decode_tokens = 0
        instruments.observe(
            STEP_TOKENS,
            lambda: [(self._num_prefill_tokens, _PREFILL_STEP), (self._num_decode_tokens, _DECODE_STEP)],
        )
        instruments.observe(MODELS_LOADED, lambda: [(len(self._weight_bytes), {})])
        instruments.observe(MODEL_WEIGHTS, self._read_weights)

    def handlers(self) -> Mapping[type, Handler]:
        return {
            StepCompleted: self._step,
            ModelLoaded: self._loaded,
            ModelUnloaded: self._unloaded,
            FaultObserved: self._fault,
            HttpRefused: self._http_refused,
            StoreFault: self._store_fault,
        }

    def _step(self, event: StepCompleted) -> None:
        self._instruments.count(STEP_DURATION, (event.at_ns - event.started_ns) / 1e9, 1, {})
        if event.num_decode_tokens:
            self._instruments.count(STEP_BATCH, event.num_decode_tokens, 1, {})
        self._num_prefill_tokens += event.num_prefill_tokens
        self._num_decode_tokens += event.num_decode_tokens

    def _loaded(self, event: ModelLoaded) -> None:
        self._weight_bytes[event.id] = event.weight_bytes
        attributes = {names.GEN_AI_RESPONSE_MODEL: event.id}
        self._instruments.record(MODEL_LOAD_TIME, event.duration_ns / 1e9, attributes)

    def _unloaded(self, event: ModelUnloaded) -> None:
        self._weight_bytes.pop(event.id, None)

    def _fault(self, event: FaultObserved) -> None:
        self._instruments.add(FAULTS, 1, {names.CAIRN_WHERE: event.where})

    def _store_fault(self, event: StoreFault) -> None:
        self._instruments.add(FAULTS, 1, {names.CAIRN_WHERE: f"store.{event.kind}"})

    def _http_refused(self, event: HttpRefused) -> None:
        self._instruments.add(HTTP_REFUSED, 1, {names.CAIRN_REASON: event.reason})

    def _read_weights(self) -> Iterable[tuple[float, Attributes]]:
        weights = dict(self._weight_bytes)
        return [(size_bytes, {names.GEN_AI_RESPONSE_MODEL: model}) for model, size_bytes in weights.items()]


__all__ = (
    "METRICS",
    "EngineMetrics",
)
