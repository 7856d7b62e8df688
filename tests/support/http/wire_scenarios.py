"""Answers as the engine tells them, for every dialect's transcript: each way in which one can begin, go on and end."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from application.services.text_side.answers.answer import Progress
from domain.errors import ComputeFailed, DomainError, QueueFull, RequestCancelled
from domain.prefix.explanation import Explanation, StopReason
from domain.request.request import FinishReason, Usage
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
from interfaces.http.answering.dialect import Framing

NUM_PROMPT = 1_000


@dataclass(frozen=True)
class Silence:
    """Nothing to tell for too long."""

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
