"""A conversation with a served model, in this process: the history, and one streamed answer at a time."""

from collections.abc import Callable

from application.services.text_side.answers.answer import failure
from domain.errors import DomainError
from domain.ids import ModelId
from domain.request.chat import ChatMessage, Role
from domain.request.request import ChatPrompt, GenerationRequest
from domain.request.sampling import SamplingParams, StopRules
from domain.request.stream import TextDelta
from interfaces.composition.service import Service


class Chat:
    """A conversation. Event loop only. The history keeps every turn, and of a cancelled answer the received part."""

    def __init__(self, service: Service, sampling: SamplingParams, stop: StopRules, system: str | None = None) -> None:
        self._service = service
        self._sampling = sampling
        self._stop = stop
        self.history: list[ChatMessage] = [ChatMessage(Role.SYSTEM, system)] if system else []

    async def ask(self, text: str, show: Callable[[str], None]) -> None:
        """Runs one turn; `show` is called with each piece of the answer. Raises DomainError, and then the turn is not
        kept.

        When the calling task is cancelled the model stops within a step, and the turn is kept.
        """
        turn = ChatMessage(Role.USER, text)
        request = GenerationRequest(
            id=self._service.container.ids().request_id("run"),
            model=ModelId(self._service.settings.model.default),
            prompt=ChatPrompt((*self.history, turn)),
            sampling=self._sampling,
            stop=self._stop,
        )
        pieces: list[str] = []
        error: DomainError | None = None
        async with self._service.container.generate().answering([request]) as answer:
            try:
                async for _, item in answer:
                    if (error := failure(item)) is not None:
                        raise error
                    if isinstance(item, TextDelta) and item.text:
                        pieces.append(item.text)
                        show(item.text)
            finally:
                if error is None:
                    self.history += [turn, ChatMessage(Role.ASSISTANT, "".join(pieces))]
