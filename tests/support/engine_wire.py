"""Every value that crosses the engine port, through msgspec and back: what an engine in another process would do."""

from dataclasses import replace
from typing import TypeVar

import msgspec

from application.ports.engine import StepBatch

T = TypeVar("T")


def wired(value: T) -> T:
    """The value as the other side would get it; an AssertionError if that is another."""
    encoded = msgspec.msgpack.encode(value)
    assert not isinstance(value, StepBatch), "its parts are sent one by one: their types differ"
    decoded = msgspec.msgpack.decode(encoded, type=type(value))
    assert decoded == value
    assert type(decoded) is type(value)
    return decoded


def wired_batch(batch: StepBatch) -> StepBatch:
    return replace(
        batch,
        items=tuple((id, choice, wired(item)) for id, choice, item in batch.items),
        events=tuple(wired(event) for event in batch.events),
    )


__all__ = ("wired", "wired_batch")
