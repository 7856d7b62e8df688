"""The service as it ships, wired by the container: on a real socket, or asked through its use case."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn.server

from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.errors import DomainError
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, Role
from domain.request.grammar import Grammar
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest
from domain.request.sampling import SamplingParams, StopRules
from domain.request.stream import Failed, Finished, TextDelta, TokenLogprob
from interfaces.composition.engine_entry import new_event_loop
from interfaces.composition.service import Service, build_service
from interfaces.http.front.server import HttpServer
from tests.support.patience import PATIENCE_S


class _Quick:
    """The module asyncio, in the eyes of `uvicorn.server`."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


def stop_quickly() -> None:
    uvicorn.server.asyncio = _Quick()  # type: ignore[attr-defined, assignment]


stop_quickly()


@dataclass
class LiveService:
    service: Service
    base_url: str


@contextmanager
def running(server: HttpServer, serve: Callable[[Callable[[str], None]], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """`serve` on an event loop of its own thread, from when it has called what it is given until the block ends.

    Raises what `serve` raised before that.
    """
    started, problems = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(serve(lambda _url: started.set()))
        except BaseException as error:
            problems.append(error)
            raise
        finally:
            started.set()

    thread = threading.Thread(target=run, name="http")
    thread.start()
    try:
        assert started.wait(PATIENCE_S), "the server did not start"
        if problems:
            raise AssertionError("the server did not start") from problems[0]
        yield
    finally:
        server.stop()
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "the server did not stop"


@contextmanager
def live_service(settings: Settings, **overrides: object) -> Iterator[LiveService]:
    """Serve until the block ends; the default model is loaded when it begins. `overrides`: as for build_service."""
    server = HttpServer(settings.server)
    service = build_service(settings, **overrides)

    async def serve(started: Callable[[str], None]) -> None:
        try:
            await service.start()
            await service.ready()
            await server.serve(service.app, started, service.container.requests().cut_off)
        finally:
            server.close()
            assert await service.stop(PATIENCE_S), "the compute thread did not end"

    with running(server, serve):
        yield LiveService(service, server.base_url)


FAKE = "fake-attention"


@dataclass(frozen=True)
class Answered:
    """`error` is set when it failed, on the way in or later."""

    text: str = ""
    reason: FinishReason | None = None
    error: DomainError | None = None
    logprobs: tuple[TokenLogprob, ...] = ()


def asking(
    number: int,
    grammar: Grammar | None,
    sampling: SamplingParams | None = None,
    stop: StopRules | None = None,
    model: str = FAKE,
) -> GenerationRequest:
    prompt = ChatPrompt((ChatMessage(Role.USER, f"Question {number}: answer me."),))
    return GenerationRequest(
        RequestId(f"ask-{number}"),
        ModelId(model),
        prompt,
        sampling=sampling or SamplingParams(temperature=1, seed=number),
        stop=stop or StopRules(max_tokens=400),
        grammar=grammar,
    )


def settings_of(model: str = FAKE) -> Settings:
    return Settings(
        model=ModelSettings(default=model),
        engine=EngineSettings(backend="fake" if model == FAKE else "mlx"),
        store=StoreSettings(kind="off", hot_tier=ByteSize(num_bytes=0)),
    )


def answers(requests: Sequence[GenerationRequest], model: str = FAKE, **overrides: object) -> list[Answered]:
    """All at once."""
    service = build_service(settings_of(model), **overrides)

    async def main() -> list[Answered]:
        await service.start()
        try:
            await service.ready()
            return await asyncio.gather(*(_answer(service, request) for request in requests))
        finally:
            assert await service.stop(PATIENCE_S), "the compute thread did not end"

    return asyncio.run(main())


async def _answer(service: Service, request: GenerationRequest) -> Answered:
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    try:
        async with service.container.generate().answering([request]) as answer:
            async for _, item in answer:
                if isinstance(item, TextDelta):
                    text.append(item.text)
                    logprobs += item.logprobs
                elif isinstance(item, Finished):
                    return Answered("".join(text), item.reason, logprobs=tuple(logprobs))
                elif isinstance(item, Failed):
                    return Answered("".join(text), error=item.error)
    except DomainError as error:
        return Answered(error=error)
    raise AssertionError("the stream ended without an end")
