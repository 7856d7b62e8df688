"""An idle HTTP server: no timer wakes it, and each answer is still dated when its request came."""

import asyncio

import pytest
from litestar import Litestar
from litestar.datastructures import State

from application.settings import ServerSettings
from interfaces.http.dialects import DIALECTS
from interfaces.http.front import connection
from interfaces.http.front.guard import Refusals
from interfaces.http.front.server import HttpServer
from interfaces.http.incoming.request_context import BodyBudget
from tests.support.http.servers.fake_service import fake_service
from tests.support.processes.timed_loop import TimedLoop


def test_a_server_that_waits_for_requests_asks_for_no_timer() -> None:
    loop = TimedLoop()

    async def run() -> list[float]:
        refusals = Refusals(DIALECTS, lambda _code, _detail: None)
        app = Litestar(state=State({"refusals": refusals, "bodies": BodyBudget(1)}))
        server, is_started = HttpServer(ServerSettings(port=0)), asyncio.Event()
        serving = asyncio.create_task(server.serve(app, lambda _url: is_started.set()))
        started = asyncio.create_task(is_started.wait())
        await asyncio.wait({started, serving}, return_when=asyncio.FIRST_COMPLETED)
        assert started.done(), serving.exception()
        for _ in range(10):  # turns of the loop, in which it comes to rest
            await asyncio.sleep(0)
        delays = list(loop.delays)
        server.stop()
        await serving
        return delays

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(run()) == []


def test_each_answer_has_the_date_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    dates = iter(("the first", "the second"))
    monkeypatch.setattr(connection, "formatdate", lambda *, usegmt: next(dates) if usegmt else "")
    with fake_service() as service:
        assert [service.client.get("/health/live").headers["date"] for _ in range(2)] == ["the first", "the second"]
