"""Delivery from another thread to a coroutine: order, merging for slow consumers, discarding."""

import asyncio
import threading

from application.services.stream_hub import MERGE_ABOVE, StreamHub
from domain.ids import RequestId
from domain.request import FinishReason, Usage
from domain.stream import Finished, PrefillProgress, StreamItem, TextDelta

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
