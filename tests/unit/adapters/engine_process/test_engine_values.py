"""Every value that crosses the engine port survives being sent."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import pytest

from adapters.engine_process.messages import decoded, encoded
from application.events import Event
from application.ports import engine
from application.ports.cache_stats import CacheStats, Cleared
from application.ports.engine import Ended, EngineError, EngineItem, StepBatch
from application.ports.model_repository import ModelPreview
from domain import errors
from domain.errors import DomainError
from domain.id_row import IdRow
from domain.ids import RequestId
from domain.memory.ledger import MemoryLimits
from domain.models.state_layout import LayerState, StateKind
from domain.request.request import Usage
from domain.request.sampling import SamplingDefaults, SamplingParams

OWN: Mapping[Any, Any] = {
    MemoryLimits: MemoryLimits.of(1 << 40),
    SamplingDefaults: SamplingDefaults(temperature=0.5, top_k=7),
    SamplingParams: SamplingParams(temperature=0.5, logit_bias=((5, -100.0),), seed=-(2**63), num_logprobs=20),
    LayerState: LayerState(StateKind.COMPOSITE, "Pair", children=(LayerState(StateKind.WINDOWED, "Ring", window=8),)),
    Any: {},
}
"""The samples of types whose fields depend on each other."""


def sample(kind: Any) -> Any:
    """A value of a type with no field at its default: whatever is lost on the way differs."""
    if kind in OWN:
        return OWN[kind]
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, typing.NewType):
        return sample(kind.__supertype__)
    if origin in (typing.Union, types.UnionType):
        return sample(next(one for one in arguments if one is not types.NoneType))
    if origin is tuple and arguments[-1:] != (...,):
        return tuple(map(sample, arguments))
    if origin in (tuple, frozenset, Sequence):
        return (frozenset if origin is frozenset else tuple)((sample(arguments[0]),))
    if origin in (dict, Mapping):
        return {sample(arguments[0]): sample(arguments[1])}
    if origin is typing.Literal:
        return arguments[-1]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        values = {one.name: sample(hints[one.name]) for one in dataclasses.fields(kind) if one.init}
        return typing.cast(Any, kind)(**values)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[-1]
    return {int: 2**53, float: float("-inf"), str: "\ufffd", bool: True, bytes: b"\0\xff", IdRow: IdRow((1, 2))}[kind]


OF_THE_PORT = [
    named
    for named in vars(engine).values()
    if dataclasses.is_dataclass(named) and getattr(named, "__module__", "") == engine.__name__
]
KINDS = dict.fromkeys(
    (*typing.get_args(Event), *typing.get_args(EngineItem), *OF_THE_PORT, CacheStats, Cleared, ModelPreview)
)
del KINDS[StepBatch]


def wired(value: Any) -> Any:
    """Returns the value as the other process gets it; it must be equal and of the same type."""
    found = decoded(encoded(value), type(value))
    assert found == value
    assert type(found) is type(value)
    return found


def wired_batch(batch: StepBatch) -> StepBatch:
    return dataclasses.replace(
        batch,
        items=tuple((id, choice, wired(item)) for id, choice, item in batch.items),
        events=tuple(wired(event) for event in batch.events),
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_value_is_what_it_was_after_being_sent(kind: Any) -> None:
    value = sample(kind)
    assert wired(value) == value
    assert kind.__dataclass_params__.frozen
    assert dataclasses.fields(kind)


def test_a_batch_is_what_it_was() -> None:
    items = tuple((RequestId("a"), choice, sample(item)) for choice, item in enumerate(typing.get_args(EngineItem)))
    batch = StepBatch(7, items, tuple(map(sample, typing.get_args(Event))), 2, (RequestId("a"),))
    assert wired_batch(batch) == batch


ERRORS = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, DomainError)]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.__name__)
def test_an_error_comes_back_with_its_code(error: type[DomainError]) -> None:
    made = EngineError.of(error("why")).to_error()
    assert (type(made), made.message, made.code) == (error, "why", error.code)


def test_a_message_of_what_is_no_text_is_sent_spelled_out() -> None:
    """A file's name may be any bytes; one such error must not end the engine for everybody."""
    error = EngineError.of(errors.ComputeFailed("no file \udcff", param="\ud800"))
    ended = Ended(Usage(10, 3), None, error)
    assert wired(ended) == ended
    assert error.message == "no file \\udcff"
    long = errors.ComputeFailed("\udcff" * 10_000)
    assert len(long.message) == errors.MAX_MESSAGE_CHARS
