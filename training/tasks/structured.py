"""JSON extraction: sentences about people to objects with given keys."""

import json
from collections.abc import Mapping, Sequence

from training.tasks.draw import Draw
from training.tasks.episode import Episode, exchange
from training.tasks.word_lists import CITIES, COLORS, JOBS, NAMES, PETS


def json_extraction(draw: Draw, room: int) -> Episode:
    """One to three people; one as an object, or all as an object or a list."""
    random = draw.random
    keys = ["name", *random.sample(["age", "city", "job", "pet", "color"], random.randint(1, 4))]
    count = random.choice((1, 1, 1, 2, 3)) if room > 150 else 1
    people: list[dict[str, object]] = []
    while len(people) < count:
        person = _person(draw)
        if person["name"] not in [one["name"] for one in people]:
            people.append(person)
    text = " ".join(_sentence(draw, person, keys) for person in people)
    objects = [{key: person[key] for key in keys} for person in people]
    listed = ", ".join(keys)
    if count > 1 and random.random() < 0.5:
        at = random.randrange(count)
        request = f"Give {people[at]['name']} as JSON with the keys {listed}."
        answer = json.dumps(objects[at])
    elif count == 1:
        request = f"Give this as JSON with the keys {listed}."
        answer = json.dumps(objects[0])
    else:
        request = f"Give this as a JSON list with the keys {listed}."
        answer = json.dumps(objects)
    return Episode(exchange(f"{text}\n{request}" if random.random() < 0.7 else f"{request}\n{text}", answer))


def _person(draw: Draw) -> dict[str, object]:
    random = draw.random
    return {
        "name": random.choice(NAMES),
        "age": random.randint(4, 95),
        "city": random.choice(CITIES),
        "job": random.choice(JOBS),
        "pet": random.choice(PETS),
        "color": random.choice(COLORS),
    }


def _sentence(draw: Draw, person: Mapping[str, object], keys: Sequence[str]) -> str:
    random = draw.random
    says = {
        "age": random.choice((f"is {person['age']} years old", f"is {person['age']}")),
        "city": random.choice((f"lives in {person['city']}", f"is from {person['city']}")),
        "job": f"works as a {person['job']}",
        "pet": f"has a {person['pet']}",
        "color": f"likes {person['color']}",
    }
    parts = [says[key] for key in keys if key != "name"]
    random.shuffle(parts)
    middle = "".join(f", {part}" for part in parts[1:-1])
    last = f" and {parts[-1]}" if len(parts) > 1 else ""
    return f"{person['name']} {parts[0]}{middle}{last}."


__all__ = ("json_extraction",)
