"""Facts hidden in running text, and facts stated over several turns."""

from training.tasks.draw import Draw
from training.tasks.episode import Episode, Turn, exchange
from training.tasks.short_tasks import arithmetic, list_lookup, transform
from training.tasks.word_lists import ATTRIBUTES, CITIES, COLORS, FOODS, JOBS, NAMES, PETS

_FACTS = (
    ("My name is {n}.", "What is my name?", "Your name is {n}."),
    ("I live in {c}.", "Where do I live?", "You live in {c}."),
    ("My {p} is called {n}.", "What is my {p} called?", "Your {p} is called {n}."),
    ("My favorite color is {col}.", "What is my favorite color?", "Your favorite color is {col}."),
    ("I like {f}.", "What food do I like?", "You like {f}."),
    ("I work as a {j}.", "What is my job?", "You work as a {j}."),
    ("My lucky number is {d}.", "What is my lucky number?", "Your lucky number is {d}."),
    ("I was born in {y}.", "When was I born?", "You were born in {y}."),
    ("My friend is {n}.", "Who is my friend?", "Your friend is {n}."),
    ("The meeting is at {h}:{mi}.", "When is the meeting?", "The meeting is at {h}:{mi}."),
    ("I have {k} {p}s.", "How many {p}s do I have?", "You have {k} {p}s."),
    ("The password is {w}.", "What is the password?", "The password is {w}."),
    ("Please keep the number {d} in mind.", "Which number should you keep in mind?", "The number is {d}."),
)


def needle(draw: Draw, room: int) -> Episode | None:
    """One to four facts somewhere in a quotation, each asked for once."""
    random = draw.random
    num_characters = int(room * random.uniform(0.3, 0.85) * 3.0)
    count = random.randint(1, 4)
    if num_characters < 150:
        return None
    text = draw.passage(num_characters)
    parts = text.split(". ") if random.random() < 0.7 else text.split("\n")
    separator = ". " if len(parts) > 1 and ". " in text else "\n"
    subjects = random.sample(NAMES + CITIES, count)
    attribute = random.choice(ATTRIBUTES[:8])
    values = [draw.digits(3, 6) if random.random() < 0.8 else draw.word() for _ in subjects]
    for subject, value in zip(subjects, values, strict=True):
        at = random.randint(0, len(parts))
        sentences = (f"The {attribute} of {subject} is {value}", f"The secret {attribute} for {subject} is {value}")
        parts.insert(at, random.choice(sentences))
    text = separator.join(parts)
    turns: list[Turn] = []
    for index, at in enumerate(random.sample(range(count), count)):
        subject = subjects[at]
        question = random.choice(
            (
                f"What is the {attribute} of {subject}?",
                f"What is the secret {attribute} for {subject}?",
                f"Find the {attribute} of {subject} in the text.",
            )
        )
        asked = f"{text}\n\n{question}" if index == 0 else question
        turns += exchange(asked, values[at], f"I look for {subject}.")
    return Episode(turns)


def memory(draw: Draw, room: int) -> Episode:
    """Up to eight facts, each stated in a turn of its own, with other talk between, and all asked for at the end."""
    random = draw.random
    count = random.randint(1, min(8, max(1, int(room / 45))))
    turns: list[Turn] = []
    known: list[tuple[str, str]] = []
    for statement, question, answer in random.sample(_FACTS, count):
        filling = _filling(draw)
        turns += exchange(statement.format(**filling), "Okay.")
        known.append((question.format(**filling), answer.format(**filling)))
        if random.random() < 0.3:
            turns += exchange(*random.choice(known))
        if random.random() < 0.3:
            turns += random.choice((arithmetic, list_lookup, transform))(draw, 120).turns
    for question, answer in random.sample(known, len(known)):
        turns += exchange(question, answer)
    return Episode(turns)


def _filling(draw: Draw) -> dict[str, object]:
    random = draw.random
    return {
        "n": random.choice(NAMES),
        "c": random.choice(CITIES),
        "p": random.choice(PETS),
        "col": random.choice(COLORS),
        "f": random.choice(FOODS),
        "j": random.choice(JOBS),
        "d": draw.digits(1, 5),
        "y": random.randint(1940, 2015),
        "h": random.randint(8, 19),
        "mi": random.choice(("00", "15", "30", "45")),
        "k": random.randint(2, 9),
        "w": draw.word(),
    }


__all__ = ("memory", "needle")
