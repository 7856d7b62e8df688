"""Every value that crosses the engine port survives being sent."""

import dataclasses
import typing

import pytest

from application import events
from application.events import (
    CacheMeasured,
    EngineRecovered,
    EngineRestarted,
    EngineStuck,
    Event,
    MemoryMeasured,
    PressureRelieved,
    ReadinessMeasured,
    RecordsOffered,
    RecordsRead,
    TierReading,
    TokensReceived,
)
from application.ports import engine
from application.ports.cache_stats import CacheStats, Cleared, HotUsage, QueueCounts, StoredModel, StoreStats
from application.ports.engine import (
    Ended,
    EngineError,
    EngineItem,
    EngineModel,
    EngineStatus,
    LoadProgress,
    ResumedChoice,
    StepBatch,
    Submission,
    Tokens,
)
from application.ports.tokenizer import EncodedPrompt
from domain import errors
from domain.errors import DomainError
from domain.health.engine_health import Activity
from domain.ids import ModelId, RequestId
from domain.memory.ledger import MemoryLimits, MemoryUse
from domain.memory.shape import MemoryShape, StateCost, StepCost
from domain.models.model_card import DecodeMode, ModelDescription, ModelSource
from domain.models.state_layout import LayerState, StateKind, StateLayout
from domain.prefix.explanation import Divergence, Explanation, StopReason
from domain.prefix.prompt_content import ForkKind, ForkPoint
from domain.request.request import FinishReason, Usage
from domain.request.sampling import SamplingParams
from domain.request.stream import Admitted, PrefillProgress, PromptLogprobs, TokenLogprob
from tests.support.engines.engine_wire import wired, wired_batch

ID, MODEL = RequestId("cmpl-1.2"), ModelId("a/b")
USAGE = Usage(10, 3, {"hot": 4, "store": 1})
SAMPLING = SamplingParams(
    temperature=0.5,
    top_p=0.9,
    top_k=7,
    min_p=0.1,
    repetition_penalty=1.1,
    presence_penalty=0.2,
    frequency_penalty=0.3,
    logit_bias=((5, -100.0),),
    seed=-(2**63),
    num_logprobs=20,
)
LAYER = LayerState(StateKind.COMPOSITE, "Pair", children=(LayerState(StateKind.WINDOWED, "Ring", window=8),))

EVENTS: tuple[Event, ...] = (
    events.RequestQueued(
        id=ID,
        model=MODEL,
        requested_model=ModelId("alias"),
        is_chat=True,
        num_prompt_tokens=9,
        at_ns=1,
        sampling=SAMPLING,
        max_tokens=5,
        num_stop_strings=2,
        trace_carrier={"traceparent": "00-1-2-01"},
    ),
    events.RequestWaits(ID, "memory", 2),
    events.RequestAdmitted(ID, 2),
    events.RequestPreempted(ID, 20, 2),
    events.PrefillChunkComputed(id=ID, start=0, end=8, started_ns=1, at_ns=2),
    events.DecodeStarted(ID, 3),
    events.FirstToken(ID, 4),
    events.RequestEnded(
        id=ID,
        reason="error",
        usage=USAGE,
        at_ns=5,
        error_code="compute_failed",
        error_message="it \ufffd failed",
        parsing=events.Parsing(
            family="json",
            num_calls=2,
            problems=("unknown_tool",),
            busy_ns=3,
            started_ns=4,
            ended_ns=5,
            has_failed=True,
        ),
    ),
    events.RequestRefused(MODEL, "queue_full", 6),
    events.HttpRefused("host", "detail", 7),
    events.StepCompleted(
        num_waiting=1, num_running=2, num_prefill_tokens=3, num_decode_tokens=4, started_ns=5, at_ns=6
    ),
    events.ModelLoaded(
        id=MODEL, duration_ns=1, weight_bytes=2**40, decode_mode="batched", note="a note", at_ns=3, active_bytes=2**41
    ),
    events.ModelUnloaded(MODEL, 1, 2),
    events.FaultObserved("engine.step", "why", 1),
    events.RecordsPersisted(num_records=1, raw_bytes=2, queued_bytes=3, started_ns=4, at_ns=5),
    events.RecordsDropped(1, 2, "orphan", 3),
    events.RecordsEvicted(1, 2),
    events.StoreFault("checksum", "where", 1),
    events.StoreOpened(5, 9),
    events.PrefixMatched(
        id=ID,
        num_prompt=9,
        reused={"hot": 4, "store": 1},
        num_known=6,
        reason="evicted",
        started_ns=1,
        at_ns=2,
        diverged_at=5,
    ),
    events.PrefixAwaited(ID, RequestId("other"), 8, 1),
    MemoryMeasured(ledger=MemoryUse(hot_bytes=7, limits=MemoryLimits.of(1 << 40)), level=2, at_ns=3),
    PressureRelieved("shrink_hot", 1 << 40, 3),
    EngineStuck(
        stuck_in="prefill",
        since_ns=2**60,
        num_waiting=1,
        num_running=2,
        num_calls=3,
        at_ns=2**61,
        request_ids=(ID,),
        stack="File ...",
        is_first=False,
    ),
    EngineRecovered("prefill", 2**60, 3),
    EngineRestarted(why="killed", num_resumed=2, down_ns=2**60, num_tries=3, at_ns=2**61),
    events.StateRestored(id=ID, position=8, size_bytes=2**35, started_ns=1, fetched_ns=2, at_ns=3),
    TokensReceived(((ID, 1),), 2),
    CacheMeasured(
        (TierReading(name="hot", num_blocks=1, num_snapshots=2, used_bytes=3, limit_bytes=4, evicted=5),), 6, 7
    ),
    ReadinessMeasured(True, 1),
    RecordsOffered(ID, 1, 2, 3),
    RecordsRead(num_records=1, raw_bytes=2, started_ns=3, at_ns=4),
    events.StateCaptured(id=ID, num_blocks=1, num_snapshots=2, size_bytes=3, started_ns=4, at_ns=5),
)

EXPLANATION = Explanation(
    9,
    StopReason.EVICTED,
    {"hot": 4, "store": 1},
    6,
    Divergence(5, (1,), (2,), None, "a", "b", None),
    ForkPoint(4, ForkKind.TURN),
    "so",
)

ITEMS: tuple[EngineItem, ...] = (
    Admitted(EXPLANATION),
    PrefillProgress(4, 9),
    PromptLogprobs((None, TokenLogprob(3, -1.5, ((3, -1.5), (4, float("-inf"))), 1))),
    Tokens((1, 2), (TokenLogprob(1, -0.5, ((1, -0.5), (7, float("-inf")))), TokenLogprob(2, -1.0)), has_eos=True),
    Ended(USAGE, FinishReason.STOP),
    Ended(USAGE, None, EngineError("InvalidRequest", "no", "prompt", {"retry_after_s": 3, "size": 0.5})),
)

OTHERS = (
    Submission(
        id=ID,
        model=MODEL,
        prompt=EncodedPrompt.of_text((1, 2, 3), (ForkPoint(2, ForkKind.NEXT_TURN),)),
        sampling=SAMPLING,
        seed=2**63 - 1,
        max_new_tokens=5,
        min_tokens=1,
        eos_token_ids=frozenset({2, 3}),
        ignore_eos=True,
        cache_salt="tenant",
        persist=False,
        num_choices=3,
        num_prompt_logprobs=2,
    ),
    EngineError("x", "y"),
    LoadProgress(MODEL, 7, 8),
    EngineStatus(
        is_alive=True,
        is_busy=True,
        last_progress_ns=1,
        last_step_ns=1,
        num_calls=4,
        activity=Activity("prefill", 1, (ID,)),
        num_waiting=2,
        num_running=3,
        memory={"active": 5},
        fault="why",
        loading=LoadProgress(MODEL, 7, 8),
        limits=MemoryLimits.of(1 << 40),
        ledger=MemoryUse(weight_bytes=1, state_bytes=2, reading_bytes=3, limits=MemoryLimits(4, 3, 2, 1)),
    ),
    EngineModel(
        ModelDescription(
            id=MODEL,
            model_type="t",
            vocab_size=9,
            context_length=8,
            eos_token_ids=frozenset({1}),
            dtype="bf16",
            weight_bytes=7,
            layout=StateLayout((LAYER,)),
            decode_mode=DecodeMode.SINGLE,
            decode_note="n",
            weights_digest=b"\0\xff",
            runtime="r",
            memory=MemoryShape(
                weight_bytes=1,
                states=(StateCost(2, 3, 4, 5), StateCost(6)),
                step=StepCost(base_bytes=7, token_bytes=8, seen_bytes=9, pair_bytes=10),
                logit_bytes=11,
                sample_bytes=12,
            ),
        ),
        "a note",
    ),
    ModelSource(MODEL, "/a", 5, "me"),
    CacheStats(
        HotUsage(budget_bytes=1, used_bytes=2, num_blocks=3, num_snapshots=4, num_pinned=5, evicted=6),
        StoreStats(
            quota_bytes=1,
            stored_bytes=2,
            evicted=3,
            faults={"checksum": 1},
            models=(
                StoredModel(model="m", num_namespaces=1, num_blocks=2, num_snapshots=3, raw_bytes=4, stored_bytes=5),
            ),
        ),
        QueueCounts(enqueued=1, persisted=2, queued=3, queued_bytes=4, dropped={"orphan": 5}),
        "why",
    ),
    Cleared(1, 2, 3, "left"),
    ResumedChoice((1, 2), None, 3, has_left_queue=True),
)


@pytest.mark.parametrize("value", [*EVENTS, *ITEMS, *OTHERS], ids=lambda value: type(value).__name__)
def test_a_value_is_what_it_was_after_being_sent(value: object) -> None:
    assert wired(value) == value
    assert hash(type(value)), "a class"
    assert dataclasses.fields(value)  # type: ignore[arg-type]


def test_a_batch_is_what_it_was() -> None:
    batch = StepBatch(7, tuple((ID, choice, item) for choice, item in enumerate(ITEMS)), EVENTS, 2, (ID,))
    assert wired_batch(batch) == batch


def test_no_message_is_left_out() -> None:
    assert {type(event) for event in EVENTS} == set(typing.get_args(Event))
    assert {type(item) for item in ITEMS} == set(typing.get_args(EngineItem))
    own = [named for named in vars(engine).values() if getattr(named, "__module__", "") == engine.__name__]
    messages = {named for named in own if dataclasses.is_dataclass(named)}
    assert messages - {StepBatch} <= {type(value) for value in (*ITEMS, *OTHERS)}


def test_messages_cannot_be_changed() -> None:
    for value in (*EVENTS, *ITEMS, *OTHERS):
        assert type(value).__dataclass_params__.frozen, type(value)  # type: ignore[attr-defined]


ERRORS = [error for name in errors.__all__ if isinstance(error := getattr(errors, name), type)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_comes_back_with_its_code(error: type[DomainError]) -> None:
    made = EngineError.of(error("why")).to_error()
    assert (type(made), made.message, made.code) == (error, "why", error.code)


def test_the_field_an_error_is_about_is_kept() -> None:
    assert EngineError.of(errors.InvalidRequest("why", param="prompt")).to_error().param == "prompt"


def test_a_message_of_what_is_no_text_is_sent_spelled_out() -> None:
    """A file's name may be any bytes; one such error must not end the engine for everybody."""
    error = EngineError.of(errors.ComputeFailed("no file \udcff", param="\ud800"))
    ended = Ended(USAGE, None, error)
    assert wired(ended) == ended
    assert error.message == "no file \\udcff"
    long = errors.ComputeFailed("\udcff" * 10_000)
    assert len(long.message) == errors.MAX_MESSAGE_CHARS
