"""Tasks that need no long context: copying, transforming, small sums, questions about a list.

Some draws are not used, and some alternatives are the same: they are kept, because leaving them out would give every
seed other chats than those the models were trained and evaluated on.
"""

from collections.abc import Callable

from training.tasks.draw import Draw
from training.tasks.episode import Episode, Turn, exchange
from training.tasks.word_lists import CITIES, NAMES


def copy(draw: Draw, room: int) -> Episode | None:
    """Words, digits or a quotation to repeat, or one line of several."""
    random = draw.random
    kind = random.random()
    budget = min(room * 0.42, random.choice((15, 30, 60, 120, 300)))
    if kind < 0.3:
        text = " ".join(draw.word_or_name() for _ in range(max(1, int(budget / 2))))
    elif kind < 0.55:
        text = " ".join(draw.digits(1, 5) for _ in range(max(1, int(budget / 5))))
    elif kind < 0.8:
        text = draw.passage(int(max(12, budget * 2.8)))
    else:
        return _copy_line(draw, budget)
    if not text:
        return None
    requests = ("Repeat: {s}", "Repeat after me: {s}", "Copy this text.\n{s}", "Say exactly: {s}")
    return Episode(exchange(random.choice(requests).format(s=text), text))


def _copy_line(draw: Draw, budget: float) -> Episode:
    random = draw.random
    count = random.randint(2, max(2, min(30, int(budget / 8))))
    lines = [" ".join(draw.word() for _ in range(random.randint(1, 4))) for _ in range(count)]
    at = random.randrange(count)
    request = random.choice(("Repeat line {i}.\n{t}", "{t}\n\nRepeat line {i}."))
    numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
    return Episode(exchange(request.format(i=at + 1, t=numbered), lines[at]))


def transform(draw: Draw, room: int) -> Episode:
    """Spell, reverse, write in capitals, sort, count, repeat a word, or pick the largest or smallest number."""
    random = draw.random
    kind = random.randint(0, 6)
    count = random.randint(2, 6)
    words = [draw.word() for _ in range(count)]
    return Episode(exchange(*_TRANSFORMS[kind](draw, room, words)))


def _spell(draw: Draw, _room: int, _words: list[str]) -> tuple[str, str]:
    word = draw.word()
    return f"Spell the word {word}.", "-".join(word)


def _reverse(_draw: Draw, _room: int, words: list[str]) -> tuple[str, str]:
    return "Reverse this list: " + ", ".join(words), ", ".join(words[::-1])


def _capitals(draw: Draw, _room: int, _words: list[str]) -> tuple[str, str]:
    text = " ".join(draw.word() for _ in range(draw.random.randint(1, 3)))
    return "Write in upper case: " + text, text.upper()


def _sort(draw: Draw, _room: int, words: list[str]) -> tuple[str, str]:
    numbers = [draw.random.randint(0, 99) for _ in words]
    return "Sort these numbers: " + ", ".join(map(str, numbers)), ", ".join(map(str, sorted(numbers)))


def _count(draw: Draw, room: int, _words: list[str]) -> tuple[str, str]:
    first = draw.random.randint(0, 80)
    last = first + draw.random.randint(2, min(40, max(2, int(room / 4) - 12)))
    return f"Count from {first} to {last}.", " ".join(map(str, range(first, last + 1)))


def _repeat_word(draw: Draw, _room: int, _words: list[str]) -> tuple[str, str]:
    word = draw.word()
    times = draw.random.randint(2, 8)
    return f"Write the word {word} {times} times.", " ".join([word] * times)


def _extreme(draw: Draw, _room: int, words: list[str]) -> tuple[str, str]:
    numbers = [draw.random.randint(0, 99) for _ in words]
    wants_largest = draw.random.random() < 0.5
    question = f"What is the {'largest' if wants_largest else 'smallest'} number in {', '.join(map(str, numbers))}?"
    return question, str(max(numbers) if wants_largest else min(numbers))


_TRANSFORMS = (_spell, _reverse, _capitals, _sort, _count, _repeat_word, _extreme)


def arithmetic(draw: Draw, _room: int) -> Episode:
    """Sums and differences of up to three digits, products up to twelve times twelve."""
    random = draw.random
    kind = random.random()
    if kind < 0.8:
        limit = 10 ** random.choice((1, 2, 2, 3)) - 1
        first, second = random.randint(0, limit), random.randint(0, limit)
        if kind < 0.5:
            sum_, result = f"{first} + {second}", first + second
        else:
            first, second = max(first, second), min(first, second)
            sum_, result = f"{first} - {second}", first - second
    else:
        first, second = random.randint(0, 12), random.randint(0, 12)
        sum_, result = f"{first} * {second}", first * second
    question = random.choice(("What is {q}?", "{q} = ?", "Compute {q}.", "How much is {q}?")).format(q=sum_)
    return Episode(exchange(question, str(result), f"{sum_} = {result}"))


def list_lookup(draw: Draw, room: int) -> Episode:
    """A list, and one to four questions about places and membership in it."""
    random = draw.random
    count = random.randint(3, max(3, min(40, int(room / 7))))
    source = random.choice((draw.material.words, NAMES, CITIES))
    items = random.sample(source, min(count, len(source)))
    is_numbered = random.random() < 0.5
    listed = "\n".join(f"{number}. {item}" for number, item in enumerate(items, 1)) if is_numbered else ", ".join(items)
    random.randrange(len(items))  # not used: see the module docstring
    question, answer = _list_question(draw, source, items, is_numbered)
    opening = random.choice(("{t}\n\n{q}", "Here is a list.\n{t}\n\n{q}")).format(t=listed, q=question)
    turns: list[Turn] = exchange(opening, answer)
    for _ in range(random.randint(0, 3)):
        turns += exchange(*_list_question(draw, source, items, is_numbered))
    return Episode(turns)


def _list_question(draw: Draw, source: list[str], items: list[str], is_numbered: bool) -> tuple[str, str]:
    random = draw.random
    kind = random.randint(0, 5)
    at = random.randrange(len(items))
    ask: Callable[[], tuple[str, str]] | None = {
        0: lambda: ("What is the first item?", items[0]),
        1: lambda: ("What is the last item?", items[-1]),
        2: lambda: _neighbour(random.randrange(len(items) - 1), items, "after", 1),
        3: lambda: _neighbour(random.randrange(1, len(items)), items, "before", -1),
        4: lambda: _membership(draw, random.choice(source), items),
    }.get(kind)
    if ask is not None:
        return ask()
    if is_numbered:
        return f"What is item {at + 1}?", items[at]
    return f"Is {random.choice(items)} in the list?", "Yes."


def _neighbour(at: int, items: list[str], side: str, step: int) -> tuple[str, str]:
    return f"Which item comes {side} {items[at]}?", items[at + step]


def _membership(draw: Draw, item: str, items: list[str]) -> tuple[str, str]:
    draw.random.random()  # not used: see the module docstring
    return f"Is {item} in the list?", "Yes." if item in items else "No."


__all__ = ("arithmetic", "copy", "list_lookup", "transform")
