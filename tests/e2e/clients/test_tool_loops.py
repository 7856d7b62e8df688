"""The embedded models as official clients use them: an agent's loop in every dialect, and facts of a long context."""

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest

from adapters.huggingface.model_folder import EMBEDDED_IDS
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.effort import scaled, some_of
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.mlx.demo_chats import DemoChat, demo_conversation

WORDS = Path(__file__).parents[3] / "training" / "text" / "words.json"
SEEDS = range(2)
"""Of the questions. Other dialects than the first ask the first one again, whose prompt is known by then."""

NUM_WRONG = 1
"""Of the loops, at most: the models' cards promise 0.96 and more of a single question."""

GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture(scope="module", params=some_of(EMBEDDED_IDS, EMBEDDED_IDS[1:]))
def live(request: pytest.FixtureRequest) -> Iterator[LiveService]:
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=request.param, download=False),
        engine=EngineSettings(backend="mlx", queue=8),
        store=StoreSettings(kind="off"),
    )
    with live_service(settings) as running:
        yield running


class Loop(NamedTuple):
    """What came of one: the call that was asked for, and the answer made of its result."""

    name: str
    arguments: dict[str, Any]
    answer: str


class Clients(NamedTuple):
    openai: openai.OpenAI
    anthropic: anthropic.Anthropic
    model: str


@pytest.fixture(scope="module")
def clients(live: LiveService) -> Iterator[Clients]:
    with (
        openai.OpenAI(base_url=f"{live.base_url}/v1", api_key="none", max_retries=0, timeout=120) as one,
        anthropic.Anthropic(base_url=live.base_url, api_key="none", max_retries=0, timeout=120) as other,
    ):
        yield Clients(one, other, live.service.settings.model.default)


def run(question: DemoChat, result: str, call: tuple[str, dict[str, Any]]) -> str:
    """The tool: it does what the task says for the arguments of the task, and nothing for others."""
    return result if call == question.tool_call else json.dumps({"error": "unknown arguments"})


def chat_loop(clients: Clients, question: DemoChat, result: str, *, stream: bool) -> Loop:
    def ask(messages: list[Any]) -> dict[str, Any]:
        asked: Any = {"model": clients.model, "messages": messages, "tools": list(question.tools), "max_tokens": 80}
        if not stream:
            choice = clients.openai.chat.completions.create(**asked, **GREEDY).choices[0]
            return {"reason": choice.finish_reason, **choice.message.model_dump(exclude_none=True)}
        with clients.openai.chat.completions.stream(**asked, **GREEDY) as events:
            final = events.get_final_completion().choices[0]
        message = final.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})
        for call in message.get("tool_calls", ()):
            call["function"].pop("parsed_arguments", None)
        return {"reason": final.finish_reason, **message}

    messages: list[Any] = list(question.messages)
    first = ask(messages)
    assert first.pop("reason") == "tool_calls"
    (call,) = first["tool_calls"]
    name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
    told = {"role": "tool", "tool_call_id": call["id"], "content": run(question, result, (name, arguments))}
    last = ask([*messages, first, told])
    assert last["reason"] == "stop"
    return Loop(name, arguments, last["content"])


def message_loop(clients: Clients, question: DemoChat, result: str) -> Loop:
    tools: Any = [
        {"name": tool["function"]["name"], "description": tool["function"]["description"],
         "input_schema": tool["function"]["parameters"]}
        for tool in question.tools
    ]  # fmt: skip
    messages: list[Any] = [{"role": one["role"], "content": one["content"]} for one in question.messages]
    asked: Any = {"model": clients.model, "max_tokens": 80, "tools": tools, "extra_body": GREEDY}
    first = clients.anthropic.messages.create(messages=messages, **asked)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    arguments: Any = call.input
    told = {"type": "tool_result", "tool_use_id": call.id, "content": run(question, result, (call.name, arguments))}
    again = [block.model_dump(exclude_none=True) for block in first.content]
    messages += [{"role": "assistant", "content": again}, {"role": "user", "content": [told]}]
    with clients.anthropic.messages.stream(messages=messages, **asked) as stream:
        last = stream.get_final_message()
    assert last.stop_reason == "end_turn"
    return Loop(call.name, arguments, "".join(block.text for block in last.content if block.type == "text"))


def response_loop(clients: Clients, question: DemoChat, result: str) -> Loop:
    tools: Any = [{"type": "function", **tool["function"]} for tool in question.tools]
    items: list[Any] = [{"role": one["role"], "content": one["content"]} for one in question.messages]
    asked: Any = {"model": clients.model, "max_output_tokens": 80, "tools": tools, **GREEDY}
    first = clients.openai.responses.create(input=items, **asked)
    (call,) = [item for item in first.output if item.type == "function_call"]
    arguments = json.loads(call.arguments)
    told = run(question, result, (call.name, arguments))
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": told})
    last = clients.openai.responses.create(input=items, **asked)
    assert last.status == "completed"
    return Loop(call.name, arguments, last.output_text)


LOOPS: dict[str, Callable[[Clients, DemoChat, str], Loop]] = {
    "chat": lambda clients, question, result: chat_loop(clients, question, result, stream=False),
    "chat-stream": lambda clients, question, result: chat_loop(clients, question, result, stream=True),
    "messages": message_loop,
    "responses": response_loop,
}


def loop_of(clients: Clients, dialect: str, seed: int) -> tuple[Loop, bool]:
    """A loop over a task, and whether it went as the task says."""
    question, answered = demo_conversation("tools_ep", seed=seed)[:2]
    call = question.tool_call
    assert call is not None
    loop = LOOPS[dialect](clients, question, answered.messages[-1]["content"])
    return loop, loop == Loop(*call, answered.answer)


@pytest.fixture(scope="module")
def chats(clients: Clients) -> list[tuple[Loop, bool]]:
    return [loop_of(clients, "chat", seed) for seed in SEEDS]


def test_a_tool_is_asked_for_run_and_its_result_answered(chats: list[tuple[Loop, bool]]) -> None:
    assert sum(is_right for _, is_right in chats) >= len(SEEDS) - NUM_WRONG


@pytest.mark.parametrize("dialect", [dialect for dialect in LOOPS if dialect != "chat"])
def test_every_dialect_says_the_same(clients: Clients, chats: list[tuple[Loop, bool]], dialect: str) -> None:
    assert loop_of(clients, dialect, SEEDS[0]) == chats[0]


def test_a_models_card_says_what_it_is(live: LiveService, clients: Clients) -> None:
    card = clients.openai.models.retrieve(clients.model)
    note = card.note  # type: ignore[attr-defined]
    assert "no assistant" in note
    shown = httpx.post(f"{live.base_url}/api/show", json={"model": clients.model}, timeout=120)
    assert shown.json()["model_info"]["general.description"] == note


def facts(count: int) -> dict[str, str]:
    """Facts that cannot be guessed, the same every time, of the kind the embedded models were trained to recall."""
    generator = random.Random(4)
    words: list[str] = json.loads(WORDS.read_text())
    return {key: str(generator.randint(10, 99_999)) for key in generator.sample(words, count)}


@pytest.mark.slow
def test_facts_are_recalled_from_a_long_context(clients: Clients) -> None:
    """What the models' cards call reliable, out of up to 700 tokens; one answer may be wrong."""
    known = facts(min(75, scaled(40)))
    listing = "Here is a list.\n" + "\n".join(f"- {key}: {value}" for key, value in known.items())
    asked = list(known)[3 :: len(known) // 3]
    assert len(asked) == 3
    right, prompt_tokens = 0, 0
    for key in asked:
        answer = clients.openai.chat.completions.create(
            model=clients.model,
            messages=[{"role": "user", "content": f"{listing}\n\nWhat is the value of {key}?"}],
            temperature=0,
            max_tokens=12,
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
        )
        assert answer.usage is not None
        prompt_tokens = answer.usage.prompt_tokens
        right += (answer.choices[0].message.content or "").strip() == known[key]
    assert prompt_tokens >= 9 * len(known)
    assert right >= len(asked) - 1, f"{right} of {len(asked)}"
