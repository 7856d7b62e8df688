"""Key and value recall in seven layouts: sentences, assignments, lists, JSON, reminders, tables."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from training.tasks.draw import Draw
from training.tasks.episode import Episode, Facts, Turn, exchange
from training.tasks.word_lists import ATTRIBUTES, NAMES


@dataclass(frozen=True, slots=True)
class _Layout:
    """The form of facts and of questions for them. `separators`: one is drawn where there are several."""

    write: Callable[[str, Sequence[str], Sequence[str]], list[str]]
    questions: tuple[str, ...]
    separators: str
    uses_names: bool = False


def _json_lines(_attribute: str, keys: Sequence[str], values: Sequence[str]) -> list[str]:
    lines = [f'  "{key}": "{value}",' for key, value in zip(keys, values, strict=True)]
    lines[-1] = lines[-1].removesuffix(",")
    lines[0] = "{\n" + lines[0]
    lines[-1] += "\n}"
    return lines


def _table_rows(attribute: str, keys: Sequence[str], values: Sequence[str]) -> list[str]:
    rows = [f"| {key} | {value} |" for key, value in zip(keys, values, strict=True)]
    rows[0] = f"| name | {attribute} |\n|---|---|\n" + rows[0]
    return rows


def _lines(pattern: str) -> Callable[[str, Sequence[str], Sequence[str]], list[str]]:
    def write(attribute: str, keys: Sequence[str], values: Sequence[str]) -> list[str]:
        return [pattern.format(a=attribute, k=key, v=value) for key, value in zip(keys, values, strict=True)]

    return write


_LAYOUTS = (
    _Layout(
        _lines("The {a} of {k} is {v}."),
        ("What is the {a} of {k}?", "Tell me the {a} of {k}.", "{k}'s {a}?"),
        " \n",
        uses_names=True,
    ),
    _Layout(_lines("{k} = {v}"), ("What is {k}?", "{k} = ?", "Look up {k}."), "\n"),
    _Layout(_lines("- {k}: {v}"), ("What is the value of {k}?", "Value for {k}?", "Find {k} in the list."), "\n"),
    _Layout(
        _lines("{k} has {a} {v}."), ("Which {a} does {k} have?", "What is the {a} of {k}?"), " \n", uses_names=True
    ),
    _Layout(_json_lines, ('What is the value of "{k}"?', "What is {k} in this JSON?"), "\n"),
    _Layout(_lines("Remember: {k} -> {v}."), ("What did I say about {k}?", "{k} -> ?"), " \n"),
    _Layout(_table_rows, ("What is the {a} of {k} in the table?",), "\n"),
)


def key_value(draw: Draw, room: int) -> Episode:
    """State up to 300 facts, then ask for up to five; now and then for one that was never stated."""
    random = draw.random
    count = min(max(1, int(min(room * random.uniform(0.15, 0.9), room - 40) / 9.5)), 300)
    layout = _LAYOUTS[random.randint(0, 6)]
    attribute = random.choice(ATTRIBUTES)
    keys = _keys(draw, layout, count)
    values = [draw.value() for _ in keys]
    lines = layout.write(attribute, keys, values)

    def ask(key: str) -> str:
        questions = layout.questions
        return (random.choice(questions) if len(questions) > 1 else questions[0]).format(a=attribute, k=key)

    separator = random.choice(layout.separators) if len(layout.separators) > 1 else layout.separators
    facts = Facts(keys, values, ask)
    asked = [_question(draw, facts) for _ in range(random.randint(1, min(5, count)))]
    turns = _opening(draw, separator.join(lines), asked[0])
    for question, value, key in asked[1:]:
        turns += exchange(question, value, _thought(key))
    return Episode(turns, facts)


def _keys(draw: Draw, layout: _Layout, count: int) -> list[str]:
    random = draw.random
    draws_names = layout.uses_names and count <= len(NAMES)
    keys: list[str] = []
    while len(keys) < count:
        if draws_names:
            key = random.choice(NAMES)
        elif random.random() < 0.7:
            key = draw.word()
        elif random.random() < 0.6:
            key = f"{draw.word()} {draw.word()}"
        else:
            key = f"{random.choice(NAMES)} {draw.word()}"
        if key not in keys:
            keys.append(key)
    return keys


def _question(draw: Draw, facts: Facts) -> tuple[str, str, str]:
    """A question, its answer and its key."""
    random = draw.random
    if random.random() < 0.06:
        key = draw.word() + " " + draw.word()
        value = facts.values[facts.keys.index(key)] if key in facts.keys else "I don't know."
    else:
        at = random.randrange(len(facts.keys))
        key, value = facts.keys[at], facts.values[at]
    return facts.ask(key), value, key


def _opening(draw: Draw, context: str, first: tuple[str, str, str]) -> list[Turn]:
    random = draw.random
    question, value, key = first
    introduction = random.choice(("", "", "Here is a list.\n", "Read this.\n", "Use these facts.\n"))
    answer = Turn("assistant", value, _thought(key))
    if random.random() < 0.75:
        context_first = random.random() < 0.8
        text = f"{introduction}{context}\n\n{question}" if context_first else f"{question}\n\n{context}"
        return [Turn("user", text), answer]
    return [*exchange(introduction + context, "Okay."), Turn("user", question), answer]


def _thought(key: str) -> str:
    return f"I look for {key}."


__all__ = ("key_value",)
