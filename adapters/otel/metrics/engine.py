"""Metrics of the engine and the socket: steps, models, faults, what was turned away."""

from collections.abc import Iterable, Mapping

from adapters.otel import semconv as names
from adapters.otel.metrics.instruments import Attributes, Instruments
from adapters.otel.metrics.metric_spec import STEP_BUCKETS, counter, gauge, histogram, observed_counter
from application.events import FaultObserved, HttpRefused, ModelLoaded, ModelUnloaded, StepCompleted, StoreFault
from application.services.event_router import Handler
from domain.ids import ModelId

HTTP_REFUSED = counter(
    names.CAIRN_HTTP_REFUSED,
    "{request}",
    "Requests and connections turned away or cut off before their body was looked at, and what a key does not allow.",
    names.CAIRN_REASON,
)
STEP_DURATION = histogram(names.CAIRN_STEP_DURATION, "s", "Duration of an engine step.", STEP_BUCKETS)
STEP_TOKENS = observed_counter(
    names.CAIRN_STEP_TOKENS,
    "{token}",
    "Tokens that engine steps computed, by phase: prefill or decode.",
    names.CAIRN_STEP_PHASE,
)
MODEL_WEIGHTS = gauge(
    names.CAIRN_MODEL_WEIGHTS, "By", "Resident weights of the loaded models.", names.GEN_AI_RESPONSE_MODEL
)
FAULTS = counter(names.CAIRN_FAULTS, "{fault}", "Faults that were contained.", names.CAIRN_WHERE)

METRICS = (
    HTTP_REFUSED,
    STEP_DURATION,
    STEP_TOKENS,
    MODEL_WEIGHTS,
    FAULTS,
)

_PREFILL_STEP = {names.CAIRN_STEP_PHASE: "prefill"}
_DECODE_STEP = {names.CAIRN_STEP_PHASE: "decode"}


class EngineMetrics:
    """One caller at a time."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._weight_bytes: dict[ModelId, int] = {}
        # Summed here and read when metrics are collected, which costs less than two counter additions a step.
        self._num_prefill_tokens = 0
        self._num_decode_tokens = 0
        instruments.observe(
            STEP_TOKENS,
            lambda: [(self._num_prefill_tokens, _PREFILL_STEP), (self._num_decode_tokens, _DECODE_STEP)],
        )
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
        self._instruments.record(STEP_DURATION, (event.at_ns - event.started_ns) / 1e9, {})
        self._num_prefill_tokens += event.num_prefill_tokens
        self._num_decode_tokens += event.num_decode_tokens

    def _loaded(self, event: ModelLoaded) -> None:
        self._weight_bytes[event.id] = event.weight_bytes

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
