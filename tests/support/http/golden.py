"""Transcripts of every dialect, as files to read and to compare with.

python -m tests.support.http.golden      writes them anew; look at the difference before you keep it
"""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

from adapters.fake.environment import FakeClock
from adapters.fake.tokenizer import FakeTokenizer
from domain.id_row import IdRow
from domain.ids import ModelId, RequestId
from domain.request.request import GenerationRequest, TextPrompt
from interfaces.http.answering.dialect import Framing, Started
from interfaces.http.anthropic.answer import MessageFraming
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.answer import OllamaAnswer, Shape, chat_answer, generate_answer
from interfaces.http.responses.answer import ResponseFraming
from interfaces.http.responses.request import Reasoning, ResponsesRequest
from tests.support.http.wire_scenarios import NUM_PROMPT, SCENARIOS, transcript

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
    prompts = (IdRow(range(NUM_PROMPT)),)
    return Started(context, (request,), prompts, ModelId("demo"), FakeTokenizer(), 1_700_000_000, submitted_ns)


def ollama_answer(shape: Shape) -> OllamaAnswer:
    return OllamaAnswer("demo:latest", started("ollama-1", submitted_ns=500_000), shape)


def framings() -> dict[str, Framing]:
    """A fresh one of each."""
    return {
        "anthropic": MessageFraming(None, started("msg-1")),
        "responses": ResponseFraming(RESPONSES_REQUEST, started("resp-1")),
        "responses_summary": ResponseFraming(SUMMARISED_REQUEST, started("resp-1")),
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
