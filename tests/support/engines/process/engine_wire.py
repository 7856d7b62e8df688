"""Every value that crosses the engine port, as bytes and back: what an engine in another process does."""

from dataclasses import replace
from typing import TypeVar

from adapters.engine_process.messages import decoded, encoded
from application.ports.engine import StepBatch

T = TypeVar("T")


def wired(value: T) -> T:
    """The value as the other side would get it; an AssertionError if that is another."""
    assert not isinstance(value, StepBatch), "its parts are sent one by one: their types differ"
    found: T = decoded(encoded(value), type(value))
    assert found == value
    assert type(found) is type(value)
    return found


def wired_batch(batch: StepBatch) -> StepBatch:
    return replace(
        batch,
        items=tuple((id, choice, wired(item)) for id, choice, item in batch.items),
        events=tuple(wired(event) for event in batch.events),
    )
