"""Delivery from another thread to a coroutine: order, merging for slow consumers, discarding."""

import asyncio
import threading
from typing import Any

from application.services.text_side.stream_hub import MERGE_ABOVE, StreamHub
from domain.ids import RequestId
from domain.request import FinishReason, Usage
from domain.stream import Failed, Finished, PrefillProgress, StreamItem, TextDelta

ID = RequestId("r")
END = Finished(FinishReason.STOP, Usage(1, 1))


def test_items_arrive_in_order_from_another_thread() -> None:
    async def consume() -> list[StreamItem]:
        hub = StreamHub()
        stream = hub.open(ID)
        items = [*(TextDelta(str(i), (i,)) for i in range(20)), END]
        threading.Thread(target=lambda: [hub.deliver([(ID, item)]) for item in items]).start()
        return [item async for item in stream]

    received = asyncio.run(consume())
    assert "".join(item.text for item in received if isinstance(item, TextDelta)) == "".join(map(str, range(20)))
    assert received[-1] is END


def test_a_slow_consumer_gets_merged_text_and_loses_nothing() -> None:
    async def consume() -> list[StreamItem]:
        hub = StreamHub()
        stream = hub.open(ID)
        hub.deliver([(ID, PrefillProgress(i, 500)) for i in range(500)])
        hub.deliver([(ID, TextDelta("x", (i,))) for i in range(1_000)])
        hub.deliver([(ID, END)])
        await asyncio.sleep(0)
        return [item async for item in stream]

    received = asyncio.run(consume())
    assert len(received) <= MERGE_ABOVE + 4
    tokens = [token for item in received if isinstance(item, TextDelta) for token in item.token_ids]
    assert tokens == list(range(1_000))
    assert any(item == PrefillProgress(499, 500) for item in received)


class Counted(tuple[int, ...]):
    """Token ids that count how many of them were copied."""

    num_copied = 0

    def __add__(self, other: Any) -> "Counted":
        Counted.num_copied += len(self) + len(other)
        return Counted(tuple(self) + tuple(other))

    def __iter__(self) -> Any:
        Counted.num_copied += len(self)
        return super().__iter__()


def test_merging_what_is_not_read_costs_what_is_in_it() -> None:
    num_tokens = 20_000
    Counted.num_copied = 0

    async def consume() -> list[StreamItem]:
        hub = StreamHub()
        stream = hub.open(ID)
        hub.deliver([(ID, TextDelta("x", Counted((i,)))) for i in range(num_tokens)])
        hub.deliver([(ID, END)])
        await asyncio.sleep(0)
        return [item async for item in stream]

    received = asyncio.run(consume())
    tokens = [token for item in received if isinstance(item, TextDelta) for token in item.token_ids]
    assert tokens == list(range(num_tokens))
    assert Counted.num_copied <= 10 * num_tokens


def test_the_end_is_told_when_it_arrives_not_when_it_is_read() -> None:
    async def end() -> list[StreamItem]:
        told: list[StreamItem] = []
        hub = StreamHub()
        hub.open(ID, told.append)
        hub.deliver([(ID, TextDelta("x", (1,))), (ID, END), (ID, END)])
        await asyncio.sleep(0)
        return told

    assert asyncio.run(end()) == [END]


def test_a_stream_that_is_never_read_fails_at_its_bound_and_holds_nothing() -> None:
    async def overflow() -> tuple[list[StreamItem], list[StreamItem], int]:
        told: list[StreamItem] = []
        hub = StreamHub(max_held_bytes=10_000)
        stream = hub.open(ID, told.append)
        hub.deliver([(ID, TextDelta("x", (i,))) for i in range(1_000)])
        await asyncio.sleep(0)
        num_items = stream.num_items
        hub.deliver([(ID, END)])
        await asyncio.sleep(0)
        return told, [item async for item in stream], num_items

    told, received, num_items = asyncio.run(overflow())
    (failed,) = told
    assert isinstance(failed, Failed)
    assert "not read" in failed.error.message
    assert received == [failed]
    assert num_items == 1


def test_a_stream_that_is_read_may_be_longer_than_its_bound() -> None:
    async def consume() -> int:
        hub = StreamHub(max_held_bytes=10_000)
        stream = hub.open(ID)
        reader = aiter(stream)
        num_tokens = 0
        for _ in range(40):
            hub.deliver([(ID, TextDelta("x" * 10, (i,))) for i in range(50)])
            await asyncio.sleep(0)
            while stream.num_items:
                item = await anext(reader)
                assert isinstance(item, TextDelta)
                num_tokens += len(item.token_ids)
        return num_tokens

    assert asyncio.run(consume()) == 40 * 50


def test_discarded_streams_receive_nothing_and_hold_nothing() -> None:
    async def consume() -> int:
        hub = StreamHub()
        hub.open(ID)
        hub.discard(ID)
        hub.deliver([(ID, END)])
        await asyncio.sleep(0)
        return len(hub)

    assert asyncio.run(consume()) == 0


def test_delivery_after_the_loop_closed_is_dropped() -> None:
    hub = StreamHub()

    async def open_stream() -> None:
        hub.open(ID)

    asyncio.run(open_stream())
    hub.deliver([(ID, END)])
