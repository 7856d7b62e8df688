"""Plain requests whose client leaves are cancelled too: the framework only watches streams."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from litestar.connection import Request
from litestar.types import Receive

from interfaces.http.errors import ClientLeft

T = TypeVar("T")


async def unless_client_leaves(request: Request[Any, Any, Any], work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, cancelling it when the client disconnects (ClientLeft). The body must have been read."""
    worker = asyncio.create_task(work)
    watcher = asyncio.create_task(_disconnected(request.receive))
    try:
        await asyncio.wait({worker, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if worker.done():
            return worker.result()
        raise ClientLeft("the client left")
    finally:
        worker.cancel()
        watcher.cancel()
        await asyncio.gather(worker, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


__all__ = ("unless_client_leaves",)
