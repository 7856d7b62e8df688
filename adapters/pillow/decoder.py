"""Image files to pixels, by Pillow. Any thread; blocking, a few nanoseconds a byte of pixels.

A file is untrusted. Its first bytes decide what it is, not the type that the client names. Its header is read first:
only the four formats are tried, and declared sizes beyond the limits are refused before any memory is taken for pixels.
Of an animation the first frame is decoded. Pillow's own limits bound compressed text and profiles in a file.
"""

import warnings
from io import BytesIO

from PIL import Image as Pillow
from PIL import ImageOps, UnidentifiedImageError

from application.ports.vision import Pixels
from domain.errors import InvalidRequest

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")

MAX_PIXELS = 50_000_000
"""The most pixels of an image: 300 MB while it is decoded. A telephone's photograph has 12 to 48 million."""

MAX_SIDE = 32_768

_WHITE = (255, 255, 255, 255)

# Of damaged metadata, and of sizes, which are checked here. Once: a filter around each call would not be thread-safe.
warnings.filterwarnings("ignore", module=r"PIL\.")


def decode(data: bytes, field: str = "") -> Pixels:
    """Returns the pixels of an encoded image, upright as its EXIF data says. Raises InvalidRequest, naming `field`, the
    fault and the remedy."""
    try:
        with Pillow.open(BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            if width * height > MAX_PIXELS or max(image.size) > MAX_SIDE:
                raise Pillow.DecompressionBombError(f"it has {width} x {height} pixels")
            return _pixels(image)
    except UnidentifiedImageError:
        why = "it is no PNG, JPEG, WebP or GIF file, or its beginning is damaged; convert it to one of them"
    except Pillow.DecompressionBombError as error:
        why = f"{error}; at most {MAX_PIXELS:,} are allowed, {MAX_SIDE:,} a side: send a smaller one"
    except MemoryError:
        raise
    except Exception as error:  # damaged files raise any
        named = ": ".join(filter(None, (type(error).__name__, str(error)[:100])))
        why = f"it cannot be decoded ({named}); send the whole file"
    raise InvalidRequest(f"{field or 'image'}: the image cannot be used: {why}", param=field or None)


def _pixels(image: Pillow.Image) -> Pixels:
    image.load()
    ImageOps.exif_transpose(image, in_place=True)
    if image.has_transparency_data:
        shown = image.convert("RGBA")
        image = Pillow.alpha_composite(Pillow.new("RGBA", shown.size, _WHITE), shown)
    if image.mode.startswith("I"):  # 16 bits a pixel: the upper 8, where Pillow's conversion would cut at 255
        image = image.point(lambda value: value * (1 / 256)).convert("L")
    if image.mode != "RGB":
        image = image.convert("RGB")
    return Pixels(*image.size, image.tobytes())
