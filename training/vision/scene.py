"""The content of a picture, as values: shapes, texts, a bar chart, or nothing; drawn from one seeded generator."""

import itertools
import math
from dataclasses import dataclass, field
from random import Random

from training.tasks.draw import Draw

COLORS = {
    "red": ((220, 30, 30), (255, 0, 0), (178, 34, 34), (200, 20, 50)),
    "blue": ((30, 60, 220), (0, 0, 255), (20, 40, 150), (65, 105, 225), (30, 130, 240)),
    "green": ((0, 160, 60), (0, 230, 0), (0, 128, 0), (50, 205, 50), (34, 139, 34)),
    "yellow": ((250, 220, 30), (255, 255, 0), (255, 215, 0), (240, 230, 60)),
    "orange": ((255, 140, 0), (255, 165, 0), (240, 120, 20)),
    "purple": ((128, 0, 128), (120, 40, 180), (148, 0, 211)),
    "pink": ((255, 105, 180), (255, 150, 190), (255, 182, 203)),
    "brown": ((139, 69, 19), (110, 60, 25), (150, 82, 45)),
    "black": ((0, 0, 0), (20, 20, 20), (35, 35, 35)),
    "white": ((255, 255, 255), (245, 245, 245)),
    "gray": ((128, 128, 128), (160, 160, 160), (105, 105, 105)),
}
SHAPES = ("circle", "square", "triangle", "star", "rectangle", "diamond", "heart", "cross", "hexagon", "ring")
_SIGNS = (
    "STOP EXIT OPEN CLOSED SALE FREE HELP DANGER CAUTION PUSH PULL ENTRY TAXI BUS HOTEL CAFE BANK PARK "
    "SHOP POLICE HOSPITAL SCHOOL WELCOME HELLO YES NO START END NORTH SOUTH EAST WEST MILK BREAD COFFEE "
    "TEA PIZZA FIRE WATER ERROR OK CANCEL SAVE LOGIN SEARCH HOME MENU TEST FILE EDIT VIEW PAUSE PLAY"
)
_SIGN_WORDS = _SIGNS.split()
_NEAREST_COLORS = 90.0

Rgb = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Thing:
    """A shape. x, y: its centre, 0 to 1 from the top left; `size`: half its width, by the picture's shorter side."""

    kind: str
    color: str
    rgb: Rgb
    x: float
    y: float
    size: float
    label: str = ""


@dataclass(frozen=True, slots=True)
class Text:
    """One line. `sign`: the colour of the panel behind it, if any."""

    text: str
    color: str
    rgb: Rgb
    x: float
    y: float
    height: float
    sign: Rgb | None = None

    @property
    def is_number(self) -> bool:
        return self.text.isdigit()


@dataclass(frozen=True, slots=True)
class Bar:
    """`value`: 1 to 99. `label`: below the bar; empty where colours tell the bars apart."""

    label: str
    value: int
    color: str
    rgb: Rgb


@dataclass(frozen=True, slots=True)
class Scene:
    """`width`, `height`: of the canvas in pixels. `seed`: for what no question asks about: fonts, angles, noise."""

    background: str
    background_rgb: Rgb
    width: int
    height: int
    seed: int
    things: list[Thing] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    shows_values: bool = False
    is_mere_noise: bool = False


def draw_scene(draw: Draw) -> Scene:
    """A picture of one of the kinds."""
    random = draw.random
    width, height = _canvas(random)
    background = random.choices(("white", "black", "gray", *COLORS), (50, 8, 6, *([3] * len(COLORS))))[0]
    common = background, _rgb(random, background), width, height, random.getrandbits(32)
    kind = random.random()
    if kind < 0.42:
        return Scene(*common, things=_things(random, *common[1:4], random.choices(_COUNTS, _COUNT_WEIGHTS)[0]))
    if kind < 0.74:
        return Scene(*common, texts=_texts(draw, common[1], 0.5))
    if kind < 0.82:
        texts = _texts(draw, common[1], 0.8, most_lines=1)
        return Scene(*common, things=_things(random, *common[1:4], random.randint(1, 3), bottom=0.6), texts=texts)
    if kind < 0.97:
        return Scene(*common, bars=_bars(draw, common[1]), shows_values=random.random() < 0.7)
    return Scene(*common, is_mere_noise=random.random() < 0.7)


_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9)
_COUNT_WEIGHTS = (16, 22, 20, 14, 10, 6, 5, 4, 3)


def _canvas(random: Random) -> tuple[int, int]:
    side = random.choice((192, 224, 256, 320, 384))
    ratio = random.choice((1.0, 1.0, random.uniform(0.7, 1.4)))
    return round(side * max(1.0, ratio)), round(side * max(1.0, 1 / ratio))


def _rgb(random: Random, color: str) -> Rgb:
    red, green, blue = (min(255, max(0, part + random.randint(-10, 10))) for part in random.choice(COLORS[color]))
    return red, green, blue


def _seen_on(random: Random, background: Rgb, colors: tuple[str, ...]) -> tuple[str, Rgb]:
    """A colour that stands out from the background."""
    while True:
        color = random.choice(colors)
        rgb = _rgb(random, color)
        if math.dist(rgb, background) > _NEAREST_COLORS:
            return color, rgb


def _things(random: Random, background: Rgb, width: int, height: int, count: int, bottom: float = 1.0) -> list[Thing]:
    """Shapes that do not touch; few kinds and colours among many shapes, so that there is something to count."""
    short = min(width, height)
    kinds = random.sample(SHAPES, random.randint(1, min(4, max(2, count))))
    colors = tuple(random.sample(sorted(COLORS), random.randint(1, min(5, count + 1))))
    if all(math.dist(rgb, background) < 2 * _NEAREST_COLORS for color in colors for rgb in COLORS[color]):
        colors = tuple(COLORS)
    largest = min(0.42, 0.62 / math.sqrt(count)) * bottom
    things: list[Thing] = []
    for _ in range(60):
        if len(things) == count:
            break
        size = random.uniform(max(0.06, largest * 0.4), max(0.08, largest))
        reach_x, reach_y = size * short / width, size * short / height
        if reach_x > 0.49 or reach_y > 0.49 * bottom:
            continue
        x, y = random.uniform(reach_x, 1 - reach_x), random.uniform(reach_y, bottom - reach_y)
        if any(
            math.hypot((x - other.x) * width, (y - other.y) * height) < (size + other.size) * 1.25 * short
            for other in things
        ):
            continue
        color, rgb = _seen_on(random, background, colors)
        label = random.choice("0123456789ABCDEFHKLMNPRSTUXYZ") if size > 0.13 and random.random() < 0.2 else ""
        things.append(Thing(random.choice(kinds), color, rgb, x, y, size, label))
    return things


def _texts(draw: Draw, background: Rgb, y: float, most_lines: int = 2) -> list[Text]:
    random = draw.random
    count = min(most_lines, random.choice((1, 1, 1, 2)))
    sign = random.choices((None, "white", *COLORS), (60, 8, *([4] * len(COLORS))))[0]
    behind = _rgb(random, sign) if sign else None
    color, rgb = _seen_on(random, behind or background, ("black", "black", "white", *COLORS))
    height = random.uniform(0.1, 0.42) / count**0.5
    gap = height * 1.5
    top = y + random.uniform(-0.15, 0.15) * (1.3 - y) - gap * (count - 1) / 2
    return [
        Text(_written(draw), color, rgb, random.uniform(0.35, 0.65), top + line * gap, height, behind)
        for line in range(count)
    ]


def _written(draw: Draw) -> str:
    """A number, a word, or letters that are none."""
    random = draw.random
    kind = random.random()
    if kind < 0.33:
        return draw.digits(1, 6) if random.random() < 0.9 else str(random.randint(0, 9))
    if kind < 0.5:
        return random.choice(_SIGN_WORDS)
    if kind < 0.85:
        word = draw.word_or_name()
    else:
        word = "".join(random.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(random.randint(2, 6)))
    return random.choice((word.upper(), word.upper(), word.lower(), word.capitalize()))


def _bars(draw: Draw, background: Rgb) -> list[Bar]:
    """Two to four bars of clearly different height, with labels and one colour, or with a colour each."""
    random = draw.random
    count = random.choice((2, 3, 3, 4))
    top = random.choice((10, 20, 50, 99))
    while True:
        values = [random.randint(1, top) for _ in range(count)]
        ordered = sorted(values)
        if all(higher - lower >= top * 0.09 for lower, higher in itertools.pairwise(ordered)):
            break
    labels = [""] * count
    if random.random() < 0.75:
        labels = list("ABCD"[:count]) if random.random() < 0.5 else random.sample("ABCDEFGHKLMNPQRSTUVXYZ", count)
    bars: list[Bar] = []
    one = _seen_on(random, background, tuple(COLORS)) if labels[0] and random.random() < 0.4 else None
    while len(bars) < count:
        color, rgb = one or _seen_on(random, background, tuple(COLORS))
        if one or color not in [bar.color for bar in bars]:
            bars.append(Bar(labels[len(bars)], values[len(bars)], color, rgb))
    return bars


__all__ = ("COLORS", "SHAPES", "Bar", "Rgb", "Scene", "Text", "Thing", "draw_scene")
