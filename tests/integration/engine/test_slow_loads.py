"""A model that takes long to load, beside streams of another: they go on, a step between two pieces of the load."""

import asyncio
from concurrent.futures import Future
from itertools import pairwise

import pytest

from adapters.fake.options import FakeOptions
from application.ports.engine import EngineModel
from application.services.text_side.answers.answer import Answer
from application.services.text_side.models.model_finder import ServedModel
from domain.errors import ServerUnavailable
from domain.ids import SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.stream import Finished
from tests.integration.engine.test_model_pool import A, B, Bench
from tests.support.patience import PATIENCE_S


async def read(answer: Answer) -> None:
    """To its end."""
    assert isinstance([item async for _, item in answer][-1], Finished)
    answer.close()


def test_a_stream_ends_while_a_load_waits_for_its_files() -> None:
    files: Future[None] = Future()
    bench = Bench(max_loaded=2, options={B: FakeOptions(load_waits_for=files)})

    async def work() -> None:
        stream = await bench.start(A, num_tokens=40)
        loading = asyncio.create_task(bench.use(B))
        await read(stream)
        assert not loading.done()
        assert bench.loads() == [A]
        files.set_result(None)
        await loading

    bench.run(work)
    assert bench.loads() == [A, B]


def test_between_two_pieces_of_a_load_is_a_step_of_what_runs() -> None:
    calls: list[str] = []
    begun: Future[None] = Future()
    asked: Future[None] = Future()

    def note(operation: str, _id: SequenceId | None, _count: int) -> None:
        calls.append(operation)
        if operation == "decode" and not begun.done():
            begun.set_result(None)
            asked.result(PATIENCE_S)  # so that the load finds tokens left to compute

    bench = Bench(max_loaded=2, options={A: FakeOptions(hook=note), B: FakeOptions(hook=note, load_pieces=20)})
    load = bench.loop.load

    async def told_load(source: ModelSource, options: LoadOptions) -> EngineModel:
        loading = asyncio.create_task(load(source, options))
        await asyncio.sleep(0)  # it is asked for in its first turn
        if source.id == B:
            asked.set_result(None)
        return await loading

    bench.loop.load = told_load  # type: ignore[method-assign]

    async def work() -> None:
        stream = await bench.start(A, num_tokens=1_000)  # more than are computed beside twenty pieces
        await asyncio.wrap_future(begun)
        await bench.use(B)
        stream.close()

    bench.run(work)
    pieces = [index for index, call in enumerate(calls) if call == "load_piece"]
    assert len(pieces) == 20
    assert all("decode" in calls[one:next_] for one, next_ in pairwise(pieces)), calls


def test_an_engine_that_stops_answers_whoever_waits_for_a_load() -> None:
    begun: Future[None] = Future()

    def note(operation: str, _id: SequenceId | None, _count: int) -> None:
        if operation == "load":
            begun.set_result(None)

    bench = Bench(max_loaded=2, options={B: FakeOptions(hook=note, load_waits_for=Future())})
    waiting: list[asyncio.Task[ServedModel]] = []

    async def work() -> None:
        await bench.use(A)
        waiting.append(asyncio.create_task(bench.pool.acquire(B)))
        await asyncio.wrap_future(begun)
        assert await bench.loop.stop(PATIENCE_S)
        with pytest.raises(ServerUnavailable):
            await waiting[0]

    bench.run(work)
    assert bench.loaded() == set()


def test_a_load_that_is_cancelled_ends_no_engine() -> None:
    begun, files = Future[None](), Future[None]()

    def note(operation: str, _id: SequenceId | None, _count: int) -> None:
        if operation == "load":
            begun.set_result(None)

    bench = Bench(max_loaded=2, options={B: FakeOptions(hook=note, load_waits_for=files)})

    async def work() -> None:
        source = bench.models.find(B)
        assert source is not None
        loading = asyncio.create_task(bench.loop.load(source, LoadOptions()))
        await asyncio.wrap_future(begun)
        loading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await loading
        files.set_result(None)
        await bench.use(B)
        await read(await bench.start(A, num_tokens=4))

    bench.run(work)
    assert bench.loads() == [B, A]
