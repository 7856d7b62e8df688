"""Answers as the engine reports them, for every dialect's transcript, and the transcripts as files.

python -m tests.support.http.golden      writes them anew; look at the difference before you keep it
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TypeAlias, cast

from adapters.fake.environment import FakeClock
from adapters.fake.tokenizer import FakeTokenizer
from application.services.text_side.answers.answer import Progress, Reading
from domain.errors import ComputeFailed, DomainError, QueueFull, RequestCancelled
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.prefix.explanation import Explanation, StopReason
from domain.request.request import FinishReason, GenerationRequest, TextPrompt, Usage
from domain.request.stream import (
    Admitted,
    ContentDelta,
    Finished,
    PrefillProgress,
    ReasoningDelta,
    StreamItem,
    TextDelta,
    ToolCallDelta,
)
from interfaces.http.answering.collected import Collected
from interfaces.http.answering.dialect import Framing, Started
from interfaces.http.anthropic.answer import MessageFraming
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.answer import OllamaAnswer, Shape, chat_answer, generate_answer
from interfaces.http.responses.answer import ResponseFraming
from interfaces.http.responses.request import Reasoning, ResponsesRequest

NUM_PROMPT = 1_000


@dataclass(frozen=True)
class Silence:
    """No event for too long."""

    text: str = "prefill 512/1000"


Step: TypeAlias = StreamItem | Silence | DomainError

ADMITTED = Admitted(Explanation(NUM_PROMPT, StopReason.LAST_TOKEN, {"hot": 512, "store": 256}))
COMPUTING = PrefillProgress(900, NUM_PROMPT)


def ended(reason: FinishReason = FinishReason.STOP, stop_text: str | None = None) -> Finished:
    return Finished(reason, Usage(NUM_PROMPT, 9, {"hot": 512, "store": 256}), stop_text)


HELLO = (TextDelta("Hel", (1,)), TextDelta("", (2,)), TextDelta("lo ✓", (3,)))
THOUGHT = (ReasoningDelta("Let me ", (4, 5)), ReasoningDelta("see.", (6,)))


def call(index: int, name: str, *arguments: str, id: str = "") -> tuple[ContentDelta, ...]:
    named = ToolCallDelta(index, id or f"call_{index}", name, token_ids=(7,))
    return (named, *(ToolCallDelta(index, arguments=piece, token_ids=(8,)) for piece in arguments))


READ = call(0, "read", '{"path": ', '"a.txt"}')
CUT_CALL = call(0, "read", '{"path": "a.t')

SCENARIOS: Mapping[str, Sequence[Step]] = {
    "text": (ADMITTED, COMPUTING, *HELLO, ended()),
    "reasoning_and_text": (ADMITTED, *THOUGHT, *HELLO, ended()),
    "text_and_two_calls": (
        *(ADMITTED, *HELLO, *READ, TextDelta("", (9,)), *call(1, "now"), ended(FinishReason.TOOL_CALLS)),
    ),
    "calls_of_every_kind": (
        ADMITTED,
        *call(0, "agents__close_agent", '{"id":"a"}'),
        *call(1, "apply_patch", '{"inp', 'ut": "*** Begin\\', "n+caf\\u00", "e9\\n", '*** End"}'),
        *call(2, "spawn_agent", "{}"),
        *call(3, "nobody", "{}"),
        ended(FinishReason.TOOL_CALLS),
    ),
    "nothing": (ADMITTED, TextDelta("", (1,)), ended()),
    "length": (ADMITTED, *HELLO, ended(FinishReason.LENGTH)),
    "length_in_reasoning": (ADMITTED, *THOUGHT, ended(FinishReason.LENGTH)),
    "length_in_a_call": (ADMITTED, *HELLO, *CUT_CALL, ended(FinishReason.LENGTH)),
    "stop_sequence": (ADMITTED, *HELLO, ended(FinishReason.STOP, "END")),
    "silence": (
        *(Silence("queued"), ADMITTED, Silence(), *HELLO, Silence("working"), *THOUGHT, Silence("working")),
        *(*READ[:1], Silence("working"), *READ[1:], ended(FinishReason.TOOL_CALLS)),
    ),
    "failure_at_once": (QueueFull("the queue is full", retry_after_s=3),),
    "failure_after_text": (ADMITTED, *HELLO, ComputeFailed("the matrix is singular")),
    "failure_after_a_call": (ADMITTED, *READ, *HELLO, ComputeFailed("the matrix is singular")),
    "failure_in_a_call": (ADMITTED, *CUT_CALL, ComputeFailed("the matrix is singular")),
    "cancelled_by_the_server": (ADMITTED, *HELLO, RequestCancelled()),
}


def transcript(framing: Framing, steps: Sequence[Step]) -> bytes:
    """What a client reads."""
    told = framing.begin()
    for step in steps:
        match step:
            case Silence(text=text):
                told += framing.keep_alive(Progress(text))
            case DomainError():
                return told + framing.fail(step)
            case item:
                told += framing.feed(0, item)
    return told + framing.end()


def collected(steps: Sequence[Step]) -> Collected | None:
    """The same as a whole answer; None for one that fails."""
    deltas = tuple(step for step in steps if isinstance(step, ContentDelta))
    last = steps[-1]
    return Collected(deltas, last) if isinstance(last, Finished) else None


FOLDER = Path(__file__).parents[2] / "golden"

RESPONSES_REQUEST = ResponsesRequest(
    model="demo",
    input="Hi",
    store=False,
    tools=[
        {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False},
        {
            "type": "custom",
            "name": "apply_patch",
            "format": {"type": "grammar", "syntax": "lark", "definition": "s: /./"},
        },
        {
            "type": "namespace",
            "name": "agents",
            "description": "Others.",
            "tools": [{"type": "function", "name": "close_agent"}, {"type": "function", "name": "spawn_agent"}],
        },
        {"type": "web_search"},
    ],
)


SUMMARISED_REQUEST = ResponsesRequest(
    input="Hi", reasoning=Reasoning(summary="auto"), include=["reasoning.encrypted_content"], store=False
)
"""As codex asks: reasoning as a summary, with a handle."""


def started(id: str, *, submitted_ns: int = 0) -> Started:
    request = GenerationRequest(RequestId(id), ModelId("demo"), TextPrompt("Hi"))
    services = SimpleNamespace(clock=FakeClock(tick_ns=1_000_000))
    context = cast(RequestContext, SimpleNamespace(services=services, arrived_ns=100))
    return Started(context, (request,), read([IdRow(range(NUM_PROMPT))]), ModelId("demo"), 1_700_000_000, submitted_ns)


def read(prompts: Sequence[IdRow], num_choices: int = 1, fingerprint: str = "") -> Reading:
    """As much of an answer as framings use."""
    model = SimpleNamespace(tokenizer=FakeTokenizer(), description=SimpleNamespace(system_fingerprint=fingerprint))
    return cast(Reading, SimpleNamespace(prompts=prompts, num_choices=len(prompts) * num_choices, model=model))


def ollama_answer(shape: Shape) -> OllamaAnswer:
    return OllamaAnswer("demo:latest", started("ollama-1", submitted_ns=500_000), shape)


def framings() -> dict[str, Framing]:
    """A fresh one of each."""
    return {
        "anthropic": MessageFraming(None, started("msg-1")),
        "responses": ResponseFraming(RESPONSES_REQUEST, started("resp_1")),
        "responses_summary": ResponseFraming(SUMMARISED_REQUEST, started("resp_1")),
        "ollama_chat": ollama_answer(chat_answer),
        "ollama_generate": ollama_answer(generate_answer),
    }


RECORDED = {
    "responses_summary": ("reasoning_and_text", "length_in_reasoning", "silence"),
    "ollama_generate": ("text", "reasoning_and_text", "text_and_two_calls"),
}
"""The scenarios of those variants that differ from `responses` and `ollama_chat`; of all others, every scenario."""


def recorded() -> list[tuple[str, str]]:
    """The dialect and the scenario of every golden file."""
    return [(dialect, scenario) for dialect in framings() for scenario in RECORDED.get(dialect, SCENARIOS)]


def golden_file(dialect: str, scenario: str) -> Path:
    return FOLDER / dialect / f"{scenario}.{'ndjson' if dialect.startswith('ollama') else 'sse'}"


def main() -> None:
    for dialect, scenario in recorded():
        path = golden_file(dialect, scenario)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(transcript(framings()[dialect], SCENARIOS[scenario]))


if __name__ == "__main__":
    main()
