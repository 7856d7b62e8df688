"""Transcripts of every dialect, as files to read and to compare with.

python -m tests.support.http.golden      writes them anew; look at the difference before you keep it
"""

from pathlib import Path

from adapters.fake.environment import FakeClock
from interfaces.http.answering.dialect import Framing
from interfaces.http.anthropic.answer import MessageFraming
from interfaces.http.ollama.answer import OllamaAnswer, Shape, chat_answer, generate_answer
from interfaces.http.responses.answer import AnswerContext, ResponseBody, ResponseFraming
from interfaces.http.responses.request import Reasoning, ResponsesRequest
from tests.support.http.wire_scenarios import NUM_PROMPT, SCENARIOS, transcript

FOLDER = Path(__file__).parents[2] / "golden"

LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}

RESPONSES_REQUEST = ResponsesRequest(
    model="demo",
    input="Hi",
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


def responses_context(request: ResponsesRequest = RESPONSES_REQUEST) -> AnswerContext:
    return AnswerContext("resp-1", 1_700_000_000, "demo", request)


def summarised_context() -> AnswerContext:
    """As codex asks: reasoning as a summary, with a handle."""
    asked = ResponsesRequest(input="Hi", reasoning=Reasoning(summary="auto"), include=["reasoning.encrypted_content"])
    return responses_context(asked)


def ollama_answer(shape: Shape) -> OllamaAnswer:
    return OllamaAnswer("demo:latest", shape, FakeClock(tick_ns=1_000_000), 100, 500_000)


def keeps_nothing(_response: ResponseBody) -> None:
    pass


def framings() -> dict[str, Framing]:
    """A fresh one of each."""
    return {
        "anthropic": MessageFraming("msg-1", "demo", NUM_PROMPT),
        "responses": ResponseFraming(responses_context(), keeps_nothing),
        "responses_summary": ResponseFraming(summarised_context(), keeps_nothing),
        "ollama_chat": ollama_answer(chat_answer),
        "ollama_generate": ollama_answer(generate_answer),
    }


def golden_file(dialect: str, scenario: str) -> Path:
    return FOLDER / dialect / f"{scenario}.{'ndjson' if dialect.startswith('ollama') else 'sse'}"


def main() -> None:
    for scenario, steps in SCENARIOS.items():
        for dialect, framing in framings().items():
            path = golden_file(dialect, scenario)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(transcript(framing, steps))


if __name__ == "__main__":
    main()
