"""Holding a streamed answer back until its requests have left the queue, so that what fails before has a status."""

import asyncio

from domain.stream import Admitted, Finished
from interfaces.http.collected import failure
from interfaces.http.fan_in import FanIn


async def until_admitted(choices: FanIn, timeout_s: float) -> None:
    """Return when every choice was admitted, when one has something to say already, or after `timeout_s`.

    Raises the error of a choice that failed meanwhile. Everything that arrived is kept for the stream.
    """
    waiting = set(range(choices.num_choices))
    try:
        async with asyncio.timeout(timeout_s):
            while waiting:
                index, item = await choices.peek()
                if (error := failure(item)) is not None:
                    raise error
                if item.is_content or isinstance(item, Finished):
                    return
                if isinstance(item, Admitted):
                    waiting.discard(index)
    except TimeoutError:
        return


__all__ = ("until_admitted",)
