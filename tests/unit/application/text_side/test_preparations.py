"""Requests before the queue: seen, cancelled wherever they wait, and told apart from a client that leaves."""

import asyncio

import pytest

from application.services.text_side.answers.preparations import Preparations
from domain.errors import RequestCancelled
from domain.ids import ModelId, RequestId
from domain.request.request import GenerationRequest, TextPrompt

ID = RequestId("a")
REQUEST = GenerationRequest(ID, ModelId("demo"), TextPrompt("x"))


class Prepared:
    """A request that is being prepared for ever, in a task of its own."""

    def __init__(self, preparations: Preparations) -> None:
        self.preparations = preparations
        self.waits = asyncio.Event()
        self.task = asyncio.create_task(self._prepare())

    async def _prepare(self) -> str:
        try:
            with self.preparations.of(REQUEST, 5):
                self.waits.set()
                await asyncio.Event().wait()
        except RequestCancelled:
            await asyncio.sleep(0)  # nothing of the cancellation is left
            return "cancelled"
        return "ended"


def test_it_is_seen_until_it_leaves() -> None:
    async def run() -> None:
        preparations = Preparations()
        with preparations.of(REQUEST, 5) as preparation:
            assert preparations.all() == [preparation]
            assert (preparation.started_ns, preparation.has_model) == (5, False)
        assert preparations.all() == []
        assert not preparations.cancel(ID)

    asyncio.run(run())


def test_cancelling_ends_the_waiting_with_an_error() -> None:
    async def run() -> None:
        prepared = Prepared(Preparations())
        await prepared.waits.wait()
        assert prepared.preparations.cancel(ID)
        assert prepared.preparations.cancel(ID)  # once more changes nothing
        assert await prepared.task == "cancelled"
        assert prepared.task.cancelling() == 0
        assert prepared.preparations.all() == []

    asyncio.run(run())


@pytest.mark.parametrize("is_cancelled_too", [False, True])
def test_a_client_that_leaves_is_no_error(is_cancelled_too: bool) -> None:
    async def run() -> None:
        prepared = Prepared(Preparations())
        await prepared.waits.wait()
        if is_cancelled_too:
            prepared.preparations.cancel(ID)
        prepared.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await prepared.task
        assert prepared.preparations.all() == []

    asyncio.run(run())


def test_another_error_passes() -> None:
    async def run() -> None:
        preparations = Preparations()
        with pytest.raises(OSError, match="disk"), preparations.of(REQUEST, 5):
            raise OSError("disk")
        assert preparations.all() == []

    asyncio.run(run())
