"""A text side without an engine: tests report by hand as an engine would, and read the calls that it got."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from adapters.fake.environment import FakeClock
from adapters.fake.tokenizer import FakeDetokenizer, FakeTokenizer
from application.ports.engine import Ended, Engine, EngineItem, EngineStatus, StepBatch, Submission, Tokens
from application.ports.event_sink import EventSink
from application.ports.tokenizer import OutputParser
from application.services.text_side.answers.answer import Answer
from application.services.text_side.answers.choice import Choice, PlainParser
from application.services.text_side.answers.open_requests import OpenRequests
from application.services.text_side.answers.prompt_images import WantedImages
from application.services.text_side.models.model_finder import ServedModel
from application.services.text_side.models.model_pool import ModelPool
from domain.ids import ModelId, RequestId
from domain.models.model_card import ModelSource
from domain.prefix.explanation import Explanation, StopReason
from domain.request.chat import ChatMessage, Role, ToolSpec
from domain.request.request import ChatPrompt, FinishReason, GenerationRequest, TextPrompt, Usage
from domain.request.sampling import StopRules
from domain.request.stream import Admitted, StreamItem, TextDelta
from tests.support.telemetry.recording import RecordingEvents

ID = RequestId("r")
SERVED = SimpleNamespace(source=ModelSource(ModelId("m"), "nowhere"))
ADMITTED = Admitted(Explanation(2, StopReason.LAST_TOKEN, {"hot": 1}))


class ScriptedEngine:
    """The part of an Engine that a generation needs."""

    def __init__(self) -> None:
        self.is_alive = True
        self.submitted: list[Submission] = []
        self.cancelled: list[tuple[Any, ...]] = []
        self.provided: list[tuple[Any, ...]] = []

    def submit(self, submission: Submission) -> None:
        self.submitted.append(submission)

    def cancel(
        self,
        id: RequestId,
        choice: int | None = None,
        *,
        reason: FinishReason = FinishReason.CANCELLED,
        num_tokens: int | None = None,
    ) -> None:
        self.cancelled.append((id, choice, reason, num_tokens))

    def provide_image(self, *answer: Any) -> None:
        self.provided.append(answer)

    def status(self) -> EngineStatus:
        return EngineStatus(
            is_alive=self.is_alive,
            is_busy=False,
            last_progress_ns=0,
            last_step_ns=0,
            num_waiting=0,
            num_running=0,
            fault="" if self.is_alive else "it is gone",
        )


class TextSide:
    """Open requests over a ScriptedEngine. Event loop only."""

    def __init__(self, events: EventSink | None = None, max_queue: int = 8) -> None:
        self.engine = ScriptedEngine()
        self.recorded = RecordingEvents()
        self.num_released = 0
        self.requests = OpenRequests(cast(Engine, self.engine), events or self.recorded, FakeClock(), max_queue)

    def open(
        self,
        id: RequestId = ID,
        *,
        answer: Answer | None = None,
        rules: StopRules | None = None,
        num_choices: int = 1,
        parser: Callable[[], OutputParser] = lambda: PlainParser(FakeDetokenizer()),
        tools: Sequence[ToolSpec] = (),
        images: WantedImages | None = None,
    ) -> Answer:
        """A submitted prompt, of a new answer or one more of `answer`."""
        prompt = ChatPrompt((ChatMessage(Role.USER, "ab"),), tuple(tools)) if tools else TextPrompt("ab")
        request = GenerationRequest(id, ModelId("m"), prompt, stop=rules or StopRules(), num_choices=num_choices)
        found = answer or Answer(cast(Engine, self.engine), cast(ModelPool, self), cast(ServedModel, SERVED))
        choices = [Choice(request, number, 2, parser()) for number in range(num_choices)]
        submission = Submission(
            id=id,
            model=request.model,
            prompt=FakeTokenizer().encode("ab"),
            sampling=request.sampling,
            seed=0,
            max_new_tokens=99,
            num_choices=num_choices,
        )
        self.requests.submit(found, submission, choices, images)
        found.complete()
        return found

    def tell(self, *items: EngineItem, id: RequestId = ID, choice: int = 0, **batch: Any) -> None:
        self.requests.receive(StepBatch(5, tuple((id, choice, item) for item in items), **batch))

    def say(self, text: str, **where: Any) -> None:
        """A batch with a token for each character."""
        self.tell(*(Tokens((token,)) for token in text.encode()), **where)

    def end(self, reason: FinishReason = FinishReason.LENGTH, num_tokens: int = 0, **where: Any) -> None:
        self.tell(Ended(Usage(2, num_tokens, {"hot": 1}), reason), **where)

    def release(self, _served: ServedModel) -> None:
        """As the pool of models."""
        self.num_released += 1


def text_of(items: list[tuple[int, StreamItem]], choice: int = 0) -> str:
    return "".join(item.text for number, item in items if number == choice and isinstance(item, TextDelta))
