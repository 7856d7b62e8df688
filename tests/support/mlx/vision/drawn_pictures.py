"""Pictures that `cairn-demo-vision` can be asked about: shapes and texts on one colour, as PNG files."""

from io import BytesIO
from typing import NamedTuple

from PIL import Image, ImageDraw, ImageFont


class Drawn(NamedTuple):
    """A circle, a square, a triangle, or else a text, in the middle of (x, y). `reach`: half its width; of a text, its
    height."""

    what: str
    color: str
    x: int
    y: int
    reach: int


def drawing(*all_drawn: Drawn, background: str = "white") -> bytes:
    """A picture of 224 pixels a side."""
    image = Image.new("RGB", (224, 224), background)
    canvas = ImageDraw.Draw(image)
    for what, color, x, y, reach in all_drawn:
        box = (x - reach, y - reach, x + reach, y + reach)
        if what == "circle":
            canvas.ellipse(box, fill=color)
        elif what == "square":
            canvas.rectangle(box, fill=color)
        elif what == "triangle":
            canvas.polygon([(x, y - reach), (x + reach, y + reach), (x - reach, y + reach)], fill=color)
        else:
            canvas.text((x, y), what, fill=color, font=ImageFont.load_default(reach), anchor="mm")
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


SHAPES = drawing(
    Drawn("circle", "red", 60, 60, 35),
    Drawn("square", "blue", 160, 70, 30),
    Drawn("triangle", "green", 70, 165, 32),
    Drawn("circle", "red", 165, 165, 28),
)
WORD = drawing(Drawn("HELLO", "black", 112, 112, 56))
NUMBER = drawing(Drawn("4821", "blue", 112, 112, 64))
SIGN = drawing(Drawn("STOP", "white", 112, 112, 60), background="#c81e1e")
