"""A scene as pixels, by Pillow. Fonts are TrueType or OpenType files."""

import io
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from training.vision.scene import Rgb, Scene, Text, Thing

SIDE = 192
"""Pixels of a side of the model's input: every picture is scaled to SIDE x SIDE, as the exported processor does."""

_TALLEST_BAR = 0.66


def render(scene: Scene, fonts: Sequence[str]) -> np.ndarray:
    """uint8 [SIDE, SIDE, 3]."""
    random = Random(scene.seed)
    return np.asarray(spoiled(draw_picture(scene, fonts, random), random))


def draw_picture(scene: Scene, fonts: Sequence[str], random: Random) -> Image.Image:
    """The picture at the scene's own size."""
    image = _noise(scene, random) if scene.is_mere_noise else _background(scene, random)
    canvas = ImageDraw.Draw(image)
    for thing in scene.things:
        _draw_thing(canvas, thing, image.size, fonts, random)
    if scene.texts:
        _draw_texts(canvas, scene.texts, image.size, fonts, random)
    if scene.bars:
        _draw_bars(canvas, scene, fonts, random)
    return image


def spoiled(image: Image.Image, random: Random) -> Image.Image:
    """Scaled as the model sees it; some blurred, noisy or through JPEG first."""
    kind = random.random()
    if kind < 0.1:
        image = image.filter(ImageFilter.GaussianBlur(random.uniform(0.3, 1.0)))
    if 0.08 < kind < 0.2:
        image = through_jpeg(image, random.randint(30, 90))
    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    if kind > 0.85:
        noise = np.random.default_rng(random.getrandbits(32)).normal(0, random.uniform(2, 9), (SIDE, SIDE, 3))
        image = Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))
    return image


def through_jpeg(image: Image.Image, quality: int) -> Image.Image:
    stored = io.BytesIO()
    image.save(stored, "JPEG", quality=quality)
    return Image.open(stored).convert("RGB")


def _background(scene: Scene, random: Random) -> Image.Image:
    size = (scene.width, scene.height)
    if random.random() < 0.85:
        return Image.new("RGB", size, scene.background_rgb)
    shift = np.array([random.uniform(-18, 18) for _ in range(3)])
    slope = (
        np.linspace(-1, 1, scene.height)[:, None, None]
        if random.random() < 0.5
        else np.linspace(-1, 1, scene.width)[None, :, None]
    )
    shaded = np.array(scene.background_rgb) + slope * shift
    return Image.fromarray(np.broadcast_to(shaded, (scene.height, scene.width, 3)).clip(0, 255).astype(np.uint8))


def _noise(scene: Scene, random: Random) -> Image.Image:
    """Blotches or grain of any colour."""
    cells = random.choice((2, 3, 5, 9, 24, 96))
    rng = np.random.default_rng(random.getrandbits(32))
    spots = Image.fromarray(rng.integers(0, 256, (cells, cells, 3), dtype=np.uint8))
    return spots.resize((scene.width, scene.height), Image.Resampling.BICUBIC)


def _draw_thing(
    canvas: ImageDraw.ImageDraw, thing: Thing, size: tuple[int, int], fonts: Sequence[str], random: Random
) -> None:
    radius = thing.size * min(size)
    x, y = thing.x * size[0], thing.y * size[1]
    stroke = max(2, round(radius * random.uniform(0.12, 0.25)))
    is_outline = not thing.label and thing.kind != "ring" and random.random() < 0.15
    paint = {"outline": thing.rgb, "width": stroke} if is_outline else {"fill": thing.rgb}
    if thing.kind in ("circle", "ring"):
        if thing.kind == "ring":
            paint = {"outline": thing.rgb, "width": max(3, round(radius * random.uniform(0.3, 0.45)))}
        canvas.ellipse((x - radius, y - radius, x + radius, y + radius), **paint)
    else:
        corners = [(x + radius * a, y + radius * b) for a, b in _outline(thing.kind, random)]
        canvas.polygon(corners, **paint)
    if thing.label:
        _draw_label(canvas, thing, x, y, radius, fonts, random)


def _outline(kind: str, random: Random) -> list[tuple[float, float]]:
    """Corners around (0, 0), within the unit circle."""
    tilt = random.uniform(-0.15, 0.15) if random.random() < 0.3 else 0.0
    if kind == "square":
        points = _regular(4, math.pi / 4)
    elif kind == "rectangle":
        slope = random.uniform(0.35, 0.45)
        points = [(a * math.cos(slope), b * math.sin(slope)) for a, b in ((-1, -1), (1, -1), (1, 1), (-1, 1))]
        points = [(b, a) for a, b in points] if random.random() < 0.4 else points
    elif kind == "diamond":
        narrow = random.uniform(0.6, 0.75)
        points = [(0, -1), (narrow, 0), (0, 1), (-narrow, 0)]
        tilt = 0.0
    elif kind == "triangle":
        points = _regular(3, -math.pi / 2)
        tilt = tilt or random.choice((0.0, 0.0, math.pi))
    elif kind == "hexagon":
        points = _regular(6, random.choice((0.0, math.pi / 6)))
    elif kind == "star":
        inner = random.uniform(0.38, 0.5)
        points = [
            (
                math.cos(-math.pi / 2 + k * math.pi / 5) * (inner if k % 2 else 1),
                math.sin(-math.pi / 2 + k * math.pi / 5) * (inner if k % 2 else 1),
            )
            for k in range(10)
        ]
    elif kind == "cross":
        arm = random.uniform(0.2, 0.32)
        points = [(-arm, -1), (arm, -1), (arm, -arm), (1, -arm), (1, arm), (arm, arm)]
        points += [(arm, 1), (-arm, 1), (-arm, arm), (-1, arm), (-1, -arm), (-arm, -arm)]
        points = [(a * 0.92, b * 0.92) for a, b in points]
    else:
        turns = [2 * math.pi * k / 40 for k in range(40)]
        points = [
            (
                16 * math.sin(turn) ** 3 / 17,
                -(13 * math.cos(turn) - 5 * math.cos(2 * turn) - 2 * math.cos(3 * turn) - math.cos(4 * turn)) / 17,
            )
            for turn in turns
        ]
    cosine, sine = math.cos(tilt), math.sin(tilt)
    return [(a * cosine - b * sine, a * sine + b * cosine) for a, b in points]


def _regular(corners: int, start: float) -> list[tuple[float, float]]:
    turns = [start + 2 * math.pi * k / corners for k in range(corners)]
    return [(math.cos(turn), math.sin(turn)) for turn in turns]


def _against(rgb: Rgb) -> Rgb:
    """Black or white, whichever stands out more."""
    return (0, 0, 0) if 0.3 * rgb[0] + 0.59 * rgb[1] + 0.11 * rgb[2] > 128 else (255, 255, 255)


def _draw_label(
    canvas: ImageDraw.ImageDraw, thing: Thing, x: float, y: float, radius: float, fonts: Sequence[str], random: Random
) -> None:
    height = radius * (0.8 if thing.kind in ("circle", "square", "hexagon") else 0.62)
    ink = _against(thing.rgb)
    if thing.kind == "ring":
        ink = thing.rgb
    shift = {"triangle": 0.0, "heart": -0.1}.get(thing.kind, 0.0) * radius
    canvas.text((x, y + shift), thing.label, font=_font(random.choice(fonts), round(height)), fill=ink, anchor="mm")


def _draw_texts(
    canvas: ImageDraw.ImageDraw, texts: Sequence[Text], size: tuple[int, int], fonts: Sequence[str], random: Random
) -> None:
    """Lines are made smaller until they fit the picture."""
    file = random.choice(fonts)
    placed = []
    for line in texts:
        height = max(9, round(line.height * min(size)))
        while True:
            font = _font(file, height)
            left, top, right, bottom = canvas.textbbox((0, 0), line.text, font=font, anchor="mm")
            if right - left < size[0] * 0.94 or height <= 9:
                break
            height = max(9, int(height * 0.85))
        half = (right - left) / 2
        x = min(max(line.x * size[0], half + 3), size[0] - half - 3)
        y = min(max(line.y * size[1], (bottom - top) / 2 + 3), size[1] - (bottom - top) / 2 - 3)
        placed.append((line, font, x, y, (x + left, y + top, x + right, y + bottom)))
    if texts[0].sign is not None:
        _draw_sign(canvas, [box for *_, box in placed], texts[0], size, random)
    for line, font, x, y, _ in placed:
        canvas.text((x, y), line.text, font=font, fill=line.rgb, anchor="mm")


def _draw_sign(
    canvas: ImageDraw.ImageDraw,
    boxes: Sequence[tuple[float, float, float, float]],
    text: Text,
    size: tuple[int, int],
    random: Random,
) -> None:
    margin = text.height * min(size) * random.uniform(0.25, 0.7)
    left, top = min(box[0] for box in boxes) - margin, min(box[1] for box in boxes) - margin
    right, bottom = max(box[2] for box in boxes) + margin, max(box[3] for box in boxes) + margin
    frame = {"outline": text.rgb, "width": max(1, round(margin * 0.15))} if random.random() < 0.5 else {}
    canvas.rounded_rectangle(
        (left, top, right, bottom), margin * random.choice((0.0, 0.3, 0.8)), fill=text.sign, **frame
    )


def _draw_bars(canvas: ImageDraw.ImageDraw, scene: Scene, fonts: Sequence[str], random: Random) -> None:
    width, height = scene.width, scene.height
    ink = _against(scene.background_rgb)
    file = random.choice(fonts)
    font = _font(file, round(min(width, height) * random.uniform(0.085, 0.12)))
    floor, left = height * random.uniform(0.82, 0.87), width * random.uniform(0.06, 0.15)
    pitch = (width * 0.97 - left) / len(scene.bars)
    share = random.uniform(0.5, 0.85)
    scale = height * _TALLEST_BAR / max(bar.value for bar in scene.bars)
    if random.random() < 0.7:
        canvas.line((left, height * 0.08, left, floor), fill=ink, width=max(1, width // 120))
    canvas.line((left, floor, width * 0.98, floor), fill=ink, width=max(1, width // 120))
    for place, bar in enumerate(scene.bars):
        middle = left + (place + 0.5) * pitch
        top = floor - bar.value * scale
        canvas.rectangle((middle - pitch * share / 2, top, middle + pitch * share / 2, floor - 1), fill=bar.rgb)
        if bar.label:
            canvas.text((middle, (floor + height) / 2), bar.label, font=font, fill=ink, anchor="mm")
        if scene.shows_values:
            canvas.text((middle, top - height * 0.015), str(bar.value), font=font, fill=ink, anchor="ms")


@cache
def _font(file: str, height: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, height)


def font_files(folder: Path) -> list[str]:
    """Every font below a folder, in a fixed order."""
    return sorted(str(path) for suffix in ("*.ttf", "*.otf") for path in folder.rglob(suffix))


__all__ = ("SIDE", "draw_picture", "font_files", "render", "spoiled", "through_jpeg")
