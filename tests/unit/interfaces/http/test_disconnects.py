"""Work that ends with its client: a disconnect cancels it, and neither hides nor is hidden by another cancellation."""

import asyncio
from typing import Any

import pytest

from interfaces.http.answering.answering import cancelled_on_disconnect
from interfaces.http.errors import ClientLeft


class Client:
    """A client that stays until `leaves` is set."""

    def __init__(self) -> None:
        self.leaves = asyncio.Event()
        self.is_watched = False

    async def receive(self) -> Any:
        self.is_watched = True
        try:
            await self.leaves.wait()
        finally:
            self.is_watched = False
        return {"type": "http.disconnect"}


async def work(client: Client, steps: int | None) -> str:
    """Ends by itself after `steps` turns of the loop."""
    async with cancelled_on_disconnect(client.receive):
        if steps is None:
            await asyncio.Event().wait()
        for _ in range(steps or 0):
            await asyncio.sleep(0)
    return "done"


def test_work_that_ends_leaves_nothing_behind() -> None:
    async def run() -> None:
        client = Client()
        assert await work(client, steps=3) == "done"
        assert not client.is_watched

    asyncio.run(run())


@pytest.mark.parametrize("is_cancelled_too", [False, True])
def test_a_client_that_leaves_cancels_the_work(is_cancelled_too: bool) -> None:
    async def run() -> None:
        client = Client()
        task = asyncio.create_task(work(client, steps=None))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert client.is_watched
        client.leaves.set()
        if is_cancelled_too:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if is_cancelled_too else ClientLeft):
            await task
        assert (task.cancelling(), client.is_watched) == (int(is_cancelled_too), False)

    asyncio.run(run())
