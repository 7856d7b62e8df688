"""The chats that are replayed: an agent's ten turns with a tool call, and long fresh prompts."""

import json
import random
from typing import Any

from tests.support.mlx.demo_chats import material

Message = dict[str, Any]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]


def prose(num_words: int, seed: int) -> str:
    """Nothing two seeds have in common beyond a few words."""
    return " ".join(random.Random(seed).choices(material().words, k=num_words))


def opening(num_words: int = 60) -> list[Message]:
    return [{"role": "system", "content": f"You are a guide in the hills. Notes: {prose(num_words, 1)}."}]


def question(number: int, num_words: int = 14) -> Message:
    return {"role": "user", "content": f"Question {number}. I saw {prose(num_words, 100 + number)}. What do you say?"}


def tool_call(city: str) -> list[Message]:
    """What a client adds to the history when the model called a tool: the call and its result."""
    function = {"name": "get_weather", "arguments": json.dumps({"city": city})}
    called = {"id": f"call_{city}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": "", "tool_calls": [called]},
        {"role": "tool", "tool_call_id": called["id"], "content": f"{city}: light snow, {prose(12, 7)}"},
    ]


def long_chat(seed: int, ending: str = "What now?", num_words: int = 215) -> list[Message]:
    """One long user message that shares nothing with those of other seeds."""
    return [{"role": "user", "content": f"{prose(num_words, 1000 + seed)}. {ending}"}]
