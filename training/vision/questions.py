"""Questions about a scene, each with its exact answer as a sentence and alone."""

from random import Random

from training.vision.scene import COLORS, SHAPES, Bar, Scene, Text
from training.vision.shape_questions import SHAPE_ASKS
from training.vision.wording import Ask, Question, article, color_word, how_many, in_picture, plural, there_are

_MOST_DESCRIBED = 4

NO_IMAGE = "I see no image."
NOTHING_KNOWN = "I see nothing that I know."
ABOUT_NOTHING = (
    "What is in the picture?", "Describe the image.", "What do you see?", "What is in this image?",
    "What does the picture show?", "Describe this picture.", "What is this?", "What is on the picture?",
)  # fmt: skip


def ask(scene: Scene, random: Random) -> Question:
    """One question that this scene answers."""
    asks, weights = zip(*_asks(scene), strict=True)
    while True:
        question = random.choices(asks, weights)[0](scene, random)
        if question is not None:
            return question


def _asks(scene: Scene) -> list[tuple[Ask, float]]:
    asks: list[tuple[Ask, float]] = [(_describe, 1.3), (_absent, 0.9)]
    if not scene.is_mere_noise:
        asks.append((_background, 0.4))
    if scene.things:
        asks += SHAPE_ASKS
    if scene.texts:
        asks += [(_read, 9.0), (_text_color, 0.8)]
    if scene.bars:
        asks += [(_count_bars, 1.0), (_extreme_bar, 3.0), (_compare_bars, 1.5), (_value, 4.0), (_bar_color, 1.0)]
    return asks


# Texts


def _read(scene: Scene, random: Random) -> Question:
    """Everything that is written; or the number, or the word, where there is one of each."""
    numbers = [line for line in scene.texts if line.is_number]
    words = [line for line in scene.texts if not line.is_number]
    if len(scene.texts) > 1 and random.random() < 0.3:
        at = random.randrange(len(scene.texts))
        text = f"Read the {('first', 'second')[at]} line."
        return Question("read", text, f"It says {scene.texts[at].text}.", scene.texts[at].text)
    if len(numbers) == 1 and random.random() < (0.75 if not words else 0.4):
        return _read_number(numbers[0], random)
    if len(words) == 1 and random.random() < (0.3 if not numbers else 0.4):
        text = random.choice(
            (
                "What word is written?",
                "Which word is written?",
                "What word do you see?",
                "What is the word?",
                "Read the word.",
            )
        )
        return Question("word", text, f"The word is {words[0].text}.", words[0].text)
    whole = " ".join(line.text for line in scene.texts)
    kind = "read" if len(scene.texts) > 1 else "number" if numbers else "word"
    if scene.texts[0].sign is not None and random.random() < 0.6:
        text = random.choice(
            (
                "What does the sign say?",
                "What does the sign say?",
                "What is written on the sign?",
                "Read the sign.",
                "What is on the sign?",
            )
        )
        return Question(kind, text, f"The sign says {whole}.", whole)
    text = random.choice(
        ("What is written?", "What does it say?", "Read the text.",
         "What text do you see?", "What is the text?", "What does the text say?",
         f"What is written{in_picture(random)}?", "Can you read this?", "Read this.")
    )  # fmt: skip
    return Question(kind, text, f"It says {whole}.", whole)


def _read_number(line: Text, random: Random) -> Question:
    text = random.choice(
        ("Which number is written?", "What number is this?",
         "What number do you see?", "Which number do you see?", "What is the number?",
         "Read the number.", f"What number is written{in_picture(random)}?")
    )  # fmt: skip
    return Question("number", text, f"The number is {line.text}.", line.text)


def _text_color(scene: Scene, random: Random) -> Question:
    what = random.choice(
        ("text", "text", "writing", "number" if all(line.is_number for line in scene.texts) else "text")
    )
    word = color_word(random)
    color = scene.texts[0].color
    text = random.choice((f"What {word} is the {what}?", f"Which {word} is the {what}?"))
    return Question("text_color", text, f"The {what} is {color}.", color)


# Charts


def _bar_name(bar: Bar) -> str:
    return f"bar {bar.label}" if bar.label else f"{bar.color} bar"


def _count_bars(scene: Scene, random: Random) -> Question:
    count = len(scene.bars)
    text = random.choice(
        (how_many("bars", random), "How many bars does the chart have?", "How many bars are in the chart?")
    )
    return Question("bars", text, there_are(count, "bar"), str(count))


def _extreme_bar(scene: Scene, random: Random) -> Question:
    is_highest = random.random() < 0.6
    bar = (max if is_highest else min)(scene.bars, key=lambda bar: bar.value)
    word = random.choice(("tallest", "highest", "largest") if is_highest else ("smallest", "shortest", "lowest"))
    name = bar.label or bar.color
    text = random.choice((f"Which bar is the {word}?", f"What is the {word} bar?", f"Which is the {word} bar?"))
    return Question(
        "bars",
        text,
        f"The {word} bar is {bar.label}." if bar.label else f"The {word} bar is the {bar.color} bar.",
        name,
    )


def _compare_bars(scene: Scene, random: Random) -> Question:
    one, other = random.sample(scene.bars, 2)
    word = random.choice(("taller", "higher", "shorter", "lower"))
    is_so = (one.value > other.value) == (word in ("taller", "higher"))
    names = [f"bar {bar.label}" if bar.label else f"the {bar.color} bar" for bar in (one, other)]
    if one.label and random.random() < 0.5:
        names = [one.label, other.label]
    return Question(
        "bars", f"Is {names[0]} {word} than {names[1]}?", "Yes." if is_so else "No.", "yes" if is_so else "no"
    )


def _value(scene: Scene, random: Random) -> Question | None:
    if not scene.shows_values:
        return None
    bar = random.choice(scene.bars)
    name = _bar_name(bar) if bar.label else f"the {_bar_name(bar)}"
    if bar.label and random.random() < 0.5:
        name = bar.label
    text = random.choice((f"What is the value of {name}?", f"Which value does {name} have?", f"How much is {name}?"))
    return Question("value", text, f"The value of {name} is {bar.value}.", str(bar.value))


def _bar_color(scene: Scene, random: Random) -> Question | None:
    bar = random.choice(scene.bars)
    if not bar.label:
        return None
    return Question(
        "bars", f"What {color_word(random)} is bar {bar.label}?", f"Bar {bar.label} is {bar.color}.", bar.color
    )


# Any picture


def _describe(scene: Scene, random: Random) -> Question | None:
    text = random.choice(ABOUT_NOTHING)
    answer = description(scene)
    return answer and Question("describe", text, answer, answer.removesuffix("."))


def description(scene: Scene) -> str | None:
    """One sentence; None where it would be too long a list."""
    if scene.is_mere_noise:
        return NOTHING_KNOWN
    if scene.bars:
        return f"A bar chart with {len(scene.bars)} bars."
    groups: dict[tuple[str, str], int] = {}
    for thing in sorted(scene.things, key=lambda thing: thing.x):
        groups[thing.color, thing.kind] = groups.get((thing.color, thing.kind), 0) + 1
    if len(groups) > _MOST_DESCRIBED:
        return f"{len(scene.things)} shapes."
    parts = [
        article(f"{color} {kind}") if count == 1 else f"{count} {color} {plural(kind)}"
        for (color, kind), count in groups.items()
    ]
    if scene.texts:
        kind = "number" if all(line.is_number for line in scene.texts) else "text"
        parts.append(f"the {kind} {' '.join(line.text for line in scene.texts)}")
    if not parts:
        return "The picture is empty."
    listed = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    return f"{listed[0].upper()}{listed[1:]}."


def _background(scene: Scene, random: Random) -> Question:
    text = random.choice(
        (f"What {color_word(random)} is the background?", f"Which {color_word(random)} does the background have?")
    )
    return Question("background", text, f"The background is {scene.background}.", scene.background)


def _absent(scene: Scene, random: Random) -> Question | None:
    """A question about what the picture does not have."""
    kind = random.choice(("shape", "text", "number", "chart"))
    if kind == "shape":
        missing = [shape for shape in SHAPES if shape not in [thing.kind for thing in scene.things]]
        if scene.bars and "rectangle" in missing:
            missing.remove("rectangle")
        shape = random.choice(missing)
        if not scene.things and random.random() < 0.4:
            return Question("absent", how_many(plural(shape), random), there_are(0, shape), "0")
        text = random.choice((f"What {color_word(random)} is the {shape}?", f"Where is the {shape}?"))
        return Question("absent", text, f"I see no {shape}.", "none")
    if kind == "text" and not scene.texts and not scene.bars and not any(thing.label for thing in scene.things):
        text = random.choice(
            (
                "What does the sign say?",
                "What is written?",
                "Read the text.",
                "What word is written?",
                "What does it say?",
            )
        )
        return Question("absent", text, "I see no text.", "none")
    has_number = any(line.is_number for line in scene.texts) or any(thing.label.isdigit() for thing in scene.things)
    if kind == "number" and not has_number and not scene.shows_values:
        text = random.choice(("Which number is written?", "What number do you see?", "Read the number."))
        return Question("absent", text, "I see no number.", "none")
    if kind == "chart" and not scene.bars:
        text = random.choice(("Which bar is the tallest?", "How many bars are there?", "What does the chart show?"))
        return Question("absent", text, "I see no chart.", "none")
    return None


def question_without_image(random: Random) -> str:
    """Questions that would need an image."""
    kind = random.choice(SHAPES)
    color = random.choice(sorted(COLORS))
    return random.choice(
        (
            *ABOUT_NOTHING[:6],
            f"What {color_word(random)} is the {kind}?",
            how_many(plural(kind), random),
            how_many(f"{color} shapes", random),
            f"Where is the {kind}?",
            f"Is there {article(f'{color} {kind}')}?",
            "What does the sign say?",
            "Which number is written?",
            "Which bar is the tallest?",
            "What is written in the image?",
            "Can you see the picture?",
            "What do you see in the image?",
        )
    )


__all__ = ("NOTHING_KNOWN", "NO_IMAGE", "Question", "ask", "description", "question_without_image")
