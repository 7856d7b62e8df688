"""Questions about the shapes of a scene."""

from collections.abc import Callable
from random import Random

from training.vision.scene import COLORS, SHAPES, Scene, Thing
from training.vision.wording import Ask, Question, article, color_word, how_many, in_picture, plural, there_are

_CLEAR = 0.12
"""The least distance of two centres, in widths or heights of the picture, at which one shape is left of or above the
other."""


def _name(thing: Thing, scene: Scene) -> str:
    """The kind, with the colour where the kind alone is not enough; may still name several."""
    same = [other for other in scene.things if other.kind == thing.kind]
    return thing.kind if len(same) == 1 else f"{thing.color} {thing.kind}"


def _is_named(thing: Thing, scene: Scene) -> bool:
    """Whether kind and colour together mean this one only."""
    return sum((other.kind, other.color) == (thing.kind, thing.color) for other in scene.things) == 1


def _color(scene: Scene, random: Random) -> Question | None:
    kind = random.choice(scene.things).kind
    colors = {thing.color for thing in scene.things if thing.kind == kind}
    count = sum(thing.kind == kind for thing in scene.things)
    if len(colors) > 1:
        return None
    color = colors.pop()
    word = color_word(random)
    if count > 1:
        text = random.choice((f"What {word} are the {plural(kind)}?", f"Which {word} do the {plural(kind)} have?"))
        return Question("color", text, f"The {plural(kind)} are {color}.", color)
    text = random.choice(
        (
            f"What {word} is the {kind}?",
            f"What {word} is the {kind}?",
            f"Which {word} is the {kind}{in_picture(random)}?",
            f"What is the {word} of the {kind}?",
            f"Tell me the {word} of the {kind}.",
            f"Which {word} does the {kind} have?",
        )
    )
    return Question("color", text, f"The {kind} is {color}.", color)


def _shape(scene: Scene, random: Random) -> Question | None:
    thing = random.choice(scene.things)
    if sum(other.color == thing.color for other in scene.things) > 1:
        return None
    if len(scene.things) == 1 and random.random() < 0.5:
        text = random.choice(("What shape is this?", "Which shape do you see?", "What shape is it?", "Name the shape."))
        return Question("shape", text, f"It is {article(thing.kind)}.", thing.kind)
    text = random.choice(
        (
            f"What shape is {thing.color}?",
            f"Which shape is {thing.color}?",
            f"What is {thing.color}{in_picture(random)}?",
            f"What shape is the {thing.color} object?",
        )
    )
    return Question("shape", text, f"The {thing.color} shape is {article(thing.kind)}.", thing.kind)


def _count_kind(scene: Scene, random: Random) -> Question:
    kinds = sorted({thing.kind for thing in scene.things})
    kind = random.choice(kinds) if random.random() < 0.88 else random.choice(SHAPES)
    chosen = [thing for thing in scene.things if thing.kind == kind]
    if not chosen or random.random() < 0.75:
        return Question("count", how_many(plural(kind), random), there_are(len(chosen), kind), str(len(chosen)))
    color = random.choice(chosen).color
    count = sum(thing.color == color for thing in chosen)
    of = f"{color} {kind}"
    return Question("count", how_many(plural(of), random), there_are(count, of), str(count))


def _count_color(scene: Scene, random: Random) -> Question:
    colors = sorted({thing.color for thing in scene.things})
    color = random.choice(colors) if random.random() < 0.88 else random.choice(sorted(COLORS))
    count = sum(thing.color == color for thing in scene.things)
    of = random.choice(("shape", "shape", "object"))
    return Question("count", how_many(f"{color} {of}s", random), there_are(count, f"{color} {of}"), str(count))


def _count_all(scene: Scene, random: Random) -> Question:
    of = random.choice(("shape", "shape", "object"))
    count = len(scene.things)
    return Question("count", how_many(f"{of}s", random), there_are(count, of), str(count))


def _exists(scene: Scene, random: Random) -> Question:
    if random.random() < 0.5:
        thing = random.choice(scene.things)
        color, kind = thing.color, thing.kind
    elif random.random() < 0.5:
        color, kind = random.choice(scene.things).color, random.choice(SHAPES)
    else:
        color, kind = random.choice(sorted(COLORS)), random.choice(scene.things).kind
    if random.random() < 0.6:
        is_there = any((thing.color, thing.kind) == (color, kind) for thing in scene.things)
        what = f"{color} {kind}"
    else:
        is_there, what = any(thing.kind == kind for thing in scene.things), kind
    text = random.choice(
        (
            f"Is there {article(what)}?",
            f"Is there {article(what)}{in_picture(random)}?",
            f"Do you see {article(what)}?",
        )
    )
    return Question("exists", text, "Yes." if is_there else "No.", "yes" if is_there else "no")


def _region(thing: Thing) -> str | None:
    """None where it could as well be called otherwise."""

    def third(at: float, low: str, high: str) -> str | None:
        if abs(at - 0.5) < 0.1:
            return ""
        return low if at < 0.34 else high if at > 0.66 else None

    down, across = third(thing.y, "top", "bottom"), third(thing.x, "left", "right")
    if down is None or across is None:
        return None
    return " ".join(word for word in (down, across) if word) or "middle"


def _where(scene: Scene, random: Random) -> Question | None:
    thing = random.choice(scene.things)
    region = _region(thing)
    if region is None or not _is_named(thing, scene):
        return None
    name = _name(thing, scene)
    place = "in the middle" if region == "middle" else f"at the {region}"
    text = random.choice(
        (f"Where is the {name}?", f"Where is the {name}{in_picture(random)}?", f"Where do you see the {name}?")
    )
    return Question("where", text, f"The {name} is {place}.", region)


_SIDES: dict[str, Callable[[Thing], float]] = {
    "left": lambda thing: thing.x,
    "right": lambda thing: -thing.x,
    "top": lambda thing: thing.y,
    "bottom": lambda thing: -thing.y,
}


def _outermost(scene: Scene, random: Random) -> Question | None:
    side = random.choice(list(_SIDES))
    ordered = sorted(scene.things, key=_SIDES[side])
    if len(ordered) < 2 or _SIDES[side](ordered[1]) - _SIDES[side](ordered[0]) < _CLEAR:
        return None
    found = ordered[0]
    place = random.choice((f"on the {side}", f"at the {side}"))
    if random.random() < 0.4:
        word = color_word(random)
        return Question(
            "side", f"What {word} is the shape {place}?", f"The shape {place} is {found.color}.", found.color
        )
    text = random.choice(
        (f"Which shape is {place}?", f"What is {place}?", f"What shape is {place}{in_picture(random)}?")
    )
    return Question("side", text, f"The shape {place} is {article(f'{found.color} {found.kind}')}.", found.kind)


_RELATIONS: dict[str, Callable[[Thing, Thing], float]] = {
    "to the left of": lambda one, other: other.x - one.x,
    "left of": lambda one, other: other.x - one.x,
    "to the right of": lambda one, other: one.x - other.x,
    "right of": lambda one, other: one.x - other.x,
    "above": lambda one, other: other.y - one.y,
    "below": lambda one, other: one.y - other.y,
}


def _relation(scene: Scene, random: Random) -> Question | None:
    if len(scene.things) < 2:
        return None
    one, other = random.sample(scene.things, 2)
    relation = random.choice(list(_RELATIONS))
    distance = _RELATIONS[relation](one, other)
    if abs(distance) < _CLEAR or not _is_named(one, scene) or not _is_named(other, scene):
        return None
    if len(scene.things) == 2 and distance > 0 and random.random() < 0.5:
        answer = f"{article(f'{one.color} {one.kind}')}."
        text = random.choice(("What is {r} the {o}?", "Which shape is {r} the {o}?"))
        text = text.format(r=relation, o=_name(other, scene))
        return Question("relation", text, answer[0].upper() + answer[1:], one.kind)
    text = f"Is the {_name(one, scene)} {relation} the {_name(other, scene)}?"
    return Question("relation", text, "Yes." if distance > 0 else "No.", "yes" if distance > 0 else "no")


def _largest(scene: Scene, random: Random) -> Question | None:
    ordered = sorted(scene.things, key=lambda thing: thing.size)
    if len(ordered) < 2:
        return None
    if random.random() < 0.5:
        found, next_, words = ordered[-1], ordered[-2], ("biggest", "largest")
        is_clear = found.size > next_.size * 1.3
    else:
        found, next_, words = ordered[0], ordered[1], ("smallest", "smallest")
        is_clear = found.size * 1.3 < next_.size
    if not is_clear:
        return None
    word = random.choice(words)
    text = random.choice((f"Which shape is the {word}?", f"What is the {word} shape?", f"Which is the {word} shape?"))
    return Question("size", text, f"The {word} shape is the {found.color} {found.kind}.", f"{found.color} {found.kind}")


def _label(scene: Scene, random: Random) -> Question | None:
    labelled = [thing for thing in scene.things if thing.label and _is_named(thing, scene)]
    if not labelled:
        return None
    thing = random.choice(labelled)
    name = _name(thing, scene)
    what = random.choice(("number", "digit") if thing.label.isdigit() else ("letter",))
    text = random.choice(
        (f"Which {what} is in the {name}?", f"What {what} is on the {name}?", f"What {what} is in the {name}?")
    )
    return Question("label", text, f"The {what} is {thing.label}.", thing.label)


SHAPE_ASKS: list[tuple[Ask, float]] = [
    (_color, 3.0), (_shape, 2.0), (_count_kind, 2.2), (_count_color, 1.3), (_count_all, 1.5),
    (_exists, 1.2), (_where, 1.3), (_outermost, 1.3), (_relation, 1.3), (_largest, 0.7), (_label, 2.0),
]  # fmt: skip
"""Each with its weight."""


__all__ = ("SHAPE_ASKS",)
