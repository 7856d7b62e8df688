"""The clients by which bodies are counted, and the turns in which large bodies are read."""

import asyncio
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from adapters.fake.environment import FakeClock
from application.services.lane import OWNER
from domain.client import ANONYMOUS, ClientMeter, KeyRing
from interfaces.http.incoming.request_context import (
    HUGE_BYTES,
    LARGE_BYTES,
    Authentication,
    BodyBudget,
    RequestContext,
    context_of,
)
from interfaces.http.services import Services
from tests.support.patience import PATIENCE_S

SERVICES = cast(Services, SimpleNamespace(clock=FakeClock(), tool_loop=None))


class Flood:
    """The bodies of one owner, of which each waits at a gate, and the order in which bodies are worked on."""

    def __init__(self) -> None:
        self.bodies, self.order = BodyBudget(16 << 20), list[str]()
        self.gate, self.begun = threading.Event(), threading.Semaphore(0)

    def worked_on(self, owner: str, num_bytes: int) -> "asyncio.Task[None]":
        context = RequestContext(SERVICES, ClientMeter(ANONYMOUS), self.bodies, owner)
        context.hold(num_bytes)
        return asyncio.create_task(context.run(self._work, owner))

    def _work(self, owner: str) -> None:
        self.order.append(owner)
        self.begun.release()
        assert owner != "flood" or self.gate.wait(PATIENCE_S)

    async def beside(self, sent: Callable[[], "asyncio.Task[None]"], num_bytes: int) -> None:
        """Runs `sent` beside 8 bodies of `num_bytes`."""
        flood = [self.worked_on("flood", num_bytes) for _ in range(8)]
        assert await asyncio.to_thread(self.begun.acquire, timeout=PATIENCE_S)
        other = sent()
        await asyncio.sleep(0)
        if num_bytes <= HUGE_BYTES:
            self.gate.set()
        await other
        self.gate.set()
        await asyncio.gather(*flood)


def test_a_large_body_waits_for_one_of_another_client() -> None:
    flood = Flood()
    asyncio.run(flood.beside(lambda: flood.worked_on("other", LARGE_BYTES + 1), LARGE_BYTES + 1))
    assert flood.order.index("other") <= 2
    assert len(flood.order) == 9


@pytest.mark.parametrize("num_bytes", [1, LARGE_BYTES + 1])
def test_huge_bodies_delay_no_smaller_one(num_bytes: int) -> None:
    flood = Flood()
    asyncio.run(flood.beside(lambda: flood.worked_on("other", num_bytes), HUGE_BYTES + 1))
    assert flood.order.index("other") == 1


@pytest.mark.parametrize(
    ("host", "owner"),
    [
        ("10.0.0.1", "address 10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "address 2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "address 2001:db8:1:2::/64"),
        ("fe80::1%eth0", "address fe80::/64"),
        ("::ffff:10.0.0.1", "address 10.0.0.1"),
        ("::1", "address ::1"),
    ],
)
def test_a_client_without_a_key_is_its_network(host: str, owner: str) -> None:
    found, bodies = list[str](), BodyBudget(16 << 20)

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        found.append(OWNER.get())
        context_of(scope).hold(bodies.max_bytes // 2)
        with pytest.raises(Exception, match="your requests"):
            bodies.take(owner, 1)

    scope: Any = {"type": "http", "path": "/health", "headers": [], "client": (host, 1), "state": {}}
    never: Any = None
    asyncio.run(Authentication(SERVICES, KeyRing([], is_open=True), bodies).handle(scope, never, never, app))
    assert found == [owner]
