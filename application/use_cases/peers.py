"""The states of the other servers of a fleet, read when somebody looks, and kept for seconds."""

import asyncio
from collections.abc import Sequence

from application.ports.clock import Clock
from application.ports.peers import PeerState, ReadPeer

KEPT_S = 5
"""The age up to which states are shown again: many pages ask a server no more often than one."""


class Peers:
    """Event loop only. `urls`: of the settings."""

    def __init__(self, urls: Sequence[str], read: ReadPeer, clock: Clock) -> None:
        self._urls, self._read, self._clock = urls, read, clock
        self._reading = asyncio.Lock()
        self._states: Sequence[PeerState] = ()
        self._read_ns = -KEPT_S * 10**9

    async def states(self) -> Sequence[PeerState]:
        """Returns the state of each server, in the order of the settings."""
        async with self._reading:
            if self._clock.now_ns() - self._read_ns >= KEPT_S * 10**9:
                self._states = await asyncio.gather(*map(self._read, self._urls))
                self._read_ns = self._clock.now_ns()
            return self._states
