"""The same scenes drawn in another way, to see what the model makes of pictures unlike those it learned from.

Larger canvases with smooth edges, patterned backgrounds, shadows and borders, other fonts, more JPEG.
"""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageDraw, ImageFilter

from training.vision.render import SIDE, draw_picture, through_jpeg
from training.vision.scene import Scene


def render_otherwise(scene: Scene, fonts: Sequence[str]) -> np.ndarray:
    """uint8 [SIDE, SIDE, 3]."""
    random = Random(scene.seed ^ 0x5EED)
    factor = random.choice((2, 3))
    large = replace(scene, width=scene.width * factor, height=scene.height * factor)
    image = draw_picture(large, fonts, random)
    if not scene.is_mere_noise:
        image = _with_pattern(large, image, fonts, random)
    if random.random() < 0.4:
        border = random.randint(2, 5) * factor
        ImageDraw.Draw(image).rectangle((0, 0, image.width - 1, image.height - 1), outline=(90, 90, 90), width=border)
    if random.random() < 0.5:
        image = through_jpeg(image, random.randint(25, 60))
    size = min(image.size[0], 400), min(image.size[1], 400)
    image = image.resize(size, Image.Resampling.LANCZOS).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    if random.random() < 0.3:
        image = through_jpeg(image, random.randint(40, 80))
    return np.asarray(image)


def _with_pattern(scene: Scene, image: Image.Image, fonts: Sequence[str], random: Random) -> Image.Image:
    """Stripes or dots of nearly the background's colour behind what is drawn, and a shadow below shapes."""
    flat = Image.new("RGB", image.size, scene.background_rgb)
    red, green, blue = ImageChops.difference(image, flat).split()
    mask = ImageChops.lighter(ImageChops.lighter(red, green), blue).point(lambda value: 255 if value > 40 else 0)
    behind = flat.copy()
    canvas = ImageDraw.Draw(behind)
    shade = tuple(max(0, min(255, part + random.choice((-14, 14)))) for part in scene.background_rgb)
    pitch = random.randint(14, 50)
    kind = random.random()
    if kind < 0.4:
        for at in range(-image.height, image.width, pitch):
            canvas.line((at, 0, at + image.height * random.choice((0, 1)), image.height), fill=shade, width=pitch // 3)
    elif kind < 0.7:
        for x in range(0, image.width, pitch):
            for y in range(0, image.height, pitch):
                canvas.ellipse((x, y, x + pitch // 3, y + pitch // 3), fill=shade)
    if scene.things and random.random() < 0.4:
        dark = tuple(part * 7 // 10 for part in scene.background_rgb)
        shift = random.randint(4, 9)
        shadow = ImageChops.offset(mask, shift, shift).filter(ImageFilter.GaussianBlur(shift / 2))
        behind.paste(Image.new("RGB", image.size, dark), mask=shadow)
    behind.paste(image, mask=mask)
    return behind


__all__ = ("render_otherwise",)
