"""Answers of several requests, which end by the id of the first."""

import asyncio

import pytest

from domain.errors import RequestCancelled, RequestNotFound, ServerUnavailable
from domain.ids import ModelId
from domain.request.request import GenerationRequest, TextPrompt
from tests.support.engines.scripted_engine import ID, TextSide


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_an_answer_of_several_requests_ends_with_all_that_runs_of_it(is_cut_off: bool) -> None:
    async def run() -> None:
        side = TextSide()
        request = GenerationRequest(ID, ModelId("m"), TextPrompt("x"))

        async def answer() -> None:
            with side.requests.enclosing(request):
                with side.requests.prepare(request, 0):
                    pass
                await asyncio.Event().wait()

        task = asyncio.create_task(answer())
        await asyncio.sleep(0)
        if is_cut_off:
            side.requests.cut_off()
        else:
            side.requests.cancel(ID)
        with pytest.raises(ServerUnavailable if is_cut_off else RequestCancelled):
            await task
        with pytest.raises(RequestNotFound):
            side.requests.cancel(ID)

    asyncio.run(run())
