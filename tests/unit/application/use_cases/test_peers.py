"""Peers are asked when somebody looks, and not again for seconds."""

import asyncio

from adapters.fake.environment import FakeClock
from application.ports.peers import PeerState
from application.use_cases.peers import KEPT_S, Peers

URLS = ("http://a", "http://b")


def test_states_are_kept_for_seconds_however_many_look() -> None:
    asked, clock = list[str](), FakeClock()

    async def read(url: str) -> PeerState:
        asked.append(url)
        return PeerState(url)

    async def look() -> None:
        peers = Peers(URLS, read, clock)
        first, second = await asyncio.gather(peers.states(), peers.states())
        assert [one.url for one in first] == [one.url for one in second] == list(URLS)
        assert sorted(asked) == list(URLS)
        clock.advance(KEPT_S)
        await peers.states()
        assert len(asked) == 4

    asyncio.run(look())


def test_a_look_that_is_given_up_leaves_the_next_one_to_ask() -> None:
    async def look() -> None:
        gate, asked = asyncio.Event(), asyncio.Event()

        async def read(url: str) -> PeerState:
            asked.set()
            await gate.wait()
            return PeerState(url)

        peers = Peers(URLS, read, FakeClock())
        left = asyncio.create_task(peers.states())
        await asked.wait()
        left.cancel()
        gate.set()
        assert len(await peers.states()) == 2

    asyncio.run(look())
