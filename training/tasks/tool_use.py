"""Tools to call: a question, the call, the tool's result, and the answer made of it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from training.tasks.draw import Draw
from training.tasks.episode import Episode, Turn
from training.tasks.recall import memory
from training.tasks.short_tasks import arithmetic, list_lookup
from training.tasks.word_lists import CITIES, COLORS, NAMES

Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Tool:
    """`parameters`: JSON types by name. `result` is drawn for given arguments; `answer` is filled from both."""

    description: str
    parameters: Mapping[str, str]
    arguments: Callable[[Draw], Values]
    questions: tuple[str, ...]
    result: Callable[[Draw, Values], Values]
    answer: str


def _city(draw: Draw) -> Values:
    return {"city": draw.random.choice(CITIES)}


def _weather(draw: Draw, _arguments: Values) -> Values:
    random = draw.random
    return {"temperature": random.randint(-10, 39), "sky": random.choice(("sunny", "cloudy", "rainy", "windy"))}


def _time(draw: Draw, _arguments: Values) -> Values:
    return {"time": f"{draw.random.randint(0, 23):02d}:{draw.random.randint(0, 59):02d}"}


def _two_numbers(draw: Draw) -> Values:
    return {"a": draw.random.randint(0, 99999), "b": draw.random.randint(0, 99999)}


def _sum(_draw: Draw, arguments: Values) -> Values:
    return {"result": int(str(arguments["a"])) + int(str(arguments["b"]))}


def _mail(draw: Draw) -> Values:
    return {"to": draw.random.choice(NAMES), "subject": draw.word()}


def _user(draw: Draw, _arguments: Values) -> Values:
    return {"id": draw.random.randint(100, 99999), "city": draw.random.choice(CITIES)}


def _light(draw: Draw) -> Values:
    room = draw.random.choice(("kitchen", "bath", "hall", "office", "garden"))
    return {"room": room, "color": draw.random.choice(COLORS)}


def _query(draw: Draw) -> Values:
    return {"query": " ".join(draw.word() for _ in range(draw.random.randint(1, 3)))}


TOOLS: Mapping[str, Tool] = {
    "get_weather": Tool(
        "Get the weather of a city",
        {"city": "string"},
        _city,
        ("What is the weather in {city}?", "How is the weather in {city}?", "Weather in {city}?"),
        _weather,
        "It is {temperature} degrees and {sky} in {city}.",
    ),
    "add": Tool(
        "Add two numbers",
        {"a": "integer", "b": "integer"},
        _two_numbers,
        ("Add {a} and {b}.", "Use the tool to compute {a} + {b}."),
        _sum,
        "The result is {result}.",
    ),
    "get_time": Tool(
        "Get the time in a city",
        {"city": "string"},
        _city,
        ("What time is it in {city}?", "Tell me the time in {city}."),
        _time,
        "It is {time} in {city}.",
    ),
    "send_mail": Tool(
        "Send a mail",
        {"to": "string", "subject": "string"},
        _mail,
        ("Send a mail to {to} about {subject}.", "Mail {to} with the subject {subject}."),
        lambda _draw, _arguments: {"sent": True},
        "I sent the mail to {to}.",
    ),
    "find_user": Tool(
        "Find a user by name",
        {"name": "string"},
        lambda draw: {"name": draw.random.choice(NAMES)},
        ("Find the user {name}.", "Look up {name}."),
        _user,
        "{name} has the id {id} and lives in {city}.",
    ),
    "get_price": Tool(
        "Get the price of an item",
        {"item": "string"},
        lambda draw: {"item": draw.word()},
        ("What does the {item} cost?", "Price of the {item}?"),
        lambda draw, _arguments: {"price": draw.random.randint(1, 9999)},
        "The {item} costs {price} euros.",
    ),
    "set_light": Tool(
        "Set the light of a room",
        {"room": "string", "color": "string"},
        _light,
        ("Make the light in the {room} {color}.", "Set the {room} light to {color}."),
        lambda _draw, _arguments: {"ok": True},
        "The light in the {room} is now {color}.",
    ),
    "search": Tool(
        "Search for a text",
        {"query": "string"},
        _query,
        ("Search for {query}.", "Find pages about {query}."),
        lambda draw, _arguments: {"hits": draw.random.randint(0, 500)},
        "I found {hits} pages about {query}.",
    ),
}


def tool_definition(name: str) -> dict[str, object]:
    """The tool as a function definition with a JSON schema."""
    tool = TOOLS[name]
    schema = {
        "type": "object",
        "properties": {key: {"type": type_} for key, type_ in tool.parameters.items()},
        "required": list(tool.parameters),
    }
    return {"name": name, "description": tool.description, "parameters": schema}


def tool_call(name: str, arguments: Values) -> str:
    """A call as the model writes it."""
    return '<tool_call>\n{"name": "' + name + '", "arguments": ' + json.dumps(arguments) + "}\n</tool_call>"


def tool_use(draw: Draw, _room: int, names: Sequence[str]) -> Episode:
    """A call to one of the named tools, mostly with its result and an answer; now and then no tool is needed."""
    random = draw.random
    if random.random() < 0.25:
        return random.choice((arithmetic, memory, list_lookup))(draw, 150)
    name = random.choice(names)
    tool = TOOLS[name]
    arguments = tool.arguments(draw)
    result = tool.result(draw, arguments)
    question = random.choice(tool.questions).format(**arguments)
    turns = [Turn("user", question), Turn("assistant", tool_call(name, arguments), f"I call {name}.")]
    if random.random() < 0.85:
        turns.append(Turn("tool", json.dumps(result)))
        turns.append(Turn("assistant", tool.answer.format(**{**arguments, **result})))
    return Episode(turns)


__all__ = ("TOOLS", "Tool", "tool_call", "tool_definition", "tool_use")
