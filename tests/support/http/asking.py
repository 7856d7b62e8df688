"""A wired service without a socket, asked through the use case that every dialect uses."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from domain.errors import DomainError
from domain.ids import ModelId, RequestId
from domain.request.chat import ChatMessage, Role
from domain.request.grammar import Grammar
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest
from domain.request.sampling import SamplingParams, StopRules
from domain.request.stream import Failed, Finished, TextDelta, TokenLogprob
from interfaces.composition.service import Service, build_service
from tests.support.patience import PATIENCE_S

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
    try:
        answer = await service.container.generate().start([request])
    except DomainError as error:
        return Answered(error=error)
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    try:
        async for _, item in answer:
            if isinstance(item, TextDelta):
                text.append(item.text)
                logprobs += item.logprobs
            elif isinstance(item, Finished):
                return Answered("".join(text), item.reason, logprobs=tuple(logprobs))
            elif isinstance(item, Failed):
                return Answered("".join(text), error=item.error)
    finally:
        answer.close()
    raise AssertionError("the stream ended without an end")
