"""Image files that no server should trust: bombs, damaged, truncated and mislabelled ones, seeded and replayable."""

import random
import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from typing import Any

from PIL import Image as Pillow

from tests.support.http.images import SHOWING

FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
PNG_HEAD = b"\x89PNG\r\n\x1a\n"


def picture(kind: str = "PNG", size: tuple[int, int] = (96, 64), mode: str = "RGB", **fields: Any) -> bytes:
    """A small picture of stripes."""
    image = Pillow.new("RGB", size, (250, 240, 20))
    for at in range(0, size[0], 8):
        image.paste((at * 255 // size[0], 40, 160), (at, 0, at + 4, size[1]))
    out = BytesIO()
    image.convert(mode).save(out, kind, **fields)
    return out.getvalue()


def png_chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width: int, height: int, rows: bytes = b"", *, more: bytes = b"") -> bytes:
    """A PNG that declares a size. `rows`: its compressed pixels; `more`: chunks before them."""
    head = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return PNG_HEAD + head + more + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


def zeros(num_bytes: int) -> bytes:
    """Compressed a thousandfold."""
    return zlib.compress(bytes(num_bytes), 9)


def gif(width: int, height: int, frame: tuple[int, int, int, int]) -> bytes:
    """A GIF whose first frame is at (left, top) and of a size of its own."""
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return b"GIF89a" + screen + b"," + struct.pack("<HHHHB", *frame, 0) + b"\x02\x02\x4c\x01\x00;"


def webp(width: int, height: int) -> bytes:
    """A WebP whose extended header declares a size."""
    canvas = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBPVP8X" + struct.pack("<I", 10) + b"\x00" * 4 + canvas
    return b"RIFF" + struct.pack("<I", len(body)) + body


def jpeg(width: int, height: int) -> bytes:
    """A JPEG whose frame header declares a size."""
    data = bytearray(picture("JPEG"))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)


def many_scans(width: int, height: int, number: int) -> bytes:
    """A progressive JPEG of one colour with so many scans more of 36 to 100 bytes; each takes a nanosecond a pixel."""
    out = BytesIO()
    Pillow.new("RGB", (width, height), "red").save(out, "JPEG", progressive=True)
    data = out.getvalue()
    tables, scans = (
        [at for at in range(len(data) - 1) if data[at : at + 2] == marker] for marker in (b"\xff\xc4", b"\xff\xda")
    )
    start, end = (max(at for at in tables if at < scan) for scan in scans[1:3])
    return data[:start] + data[start:end] * number + data[end:]


BOMBS: dict[str, Callable[[], bytes]] = {
    "png of 3.6 gigapixels": lambda: png(60_000, 60_000, zeros(1 << 16)),
    "png of 2^31 by 2^31": lambda: png(2**31 - 1, 2**31 - 1),
    "png of no pixels": lambda: png(0, 7),
    "png of a long side": lambda: png(40_000, 10),
    "png whose text grows": lambda: png(4, 4, zeros(100), more=png_chunk(b"zTXt", b"k\0\0" + zeros(1 << 25))),
    "png whose profile grows": lambda: png(4, 4, zeros(100), more=png_chunk(b"iCCP", b"k\0\0" + zeros(1 << 25))),
    "png whose pixels are missing": lambda: png(5_000, 5_000, zeros(1 << 10)),
    "gif whose frame is beyond its screen": lambda: gif(1, 1, (65_000, 65_000, 500, 500)),
    "gif of 4 gigapixels": lambda: gif(65_535, 65_535, (0, 0, 65_535, 65_535)),
    "webp of 2^24 by 2^24": lambda: webp(1 << 24, 1 << 24),
    "jpeg of 4 gigapixels": lambda: jpeg(65_535, 65_535),
}

STRANGERS: dict[str, bytes] = {
    "nothing": b"",
    "pdf": b"%PDF-1.7\n1 0 obj\n<<>>\nendobj\n",
    "svg": b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>',
    "bmp": picture("BMP"),
    "tiff": picture("TIFF"),
    "ico": picture("ICO"),
    "ppm": picture("PPM"),
    "eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    "heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic",
    "text": b"a picture of a cat",
    "zip": b"PK\x03\x04" + bytes(40),
}


def hostile_images(num: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yields a name and a file each; some of the damaged ones can still be shown."""
    rng = random.Random(seed)
    bombs = {name: make() for name, make in BOMBS.items()}
    whole = {kind: picture(kind) for kind in FORMATS}
    for _ in range(num):
        kind, data = rng.choice(list(whole.items()))
        match rng.randrange(6):
            case 0:
                yield rng.choice(list(bombs.items()))
            case 1:
                yield rng.choice(list(STRANGERS.items()))
            case 2:
                yield f"truncated {kind}", data[: rng.randrange(len(data))]
            case 3:
                yield f"damaged {kind}", _damaged(rng, data, rng.randrange(1, 40))
            case 4:
                yield f"resized {kind}", _damaged(rng, data[:64], rng.randrange(1, 6)) + data[64:]
            case _:
                yield f"head of {kind}", data[: rng.randrange(40)] + rng.randbytes(rng.randrange(2_000))


def _damaged(rng: random.Random, data: bytes, num_bytes: int) -> bytes:
    damaged = bytearray(data)
    for _ in range(num_bytes):
        damaged[rng.randrange(len(damaged))] = rng.randrange(256)
    return bytes(damaged)


def send(post: Callable[[str, dict[str, Any]], Any], num: int, seed: int) -> Counter[int]:
    """Sends images in all dialects in turn; returns how often each status came."""
    found, dialects = Counter[int](), list(SHOWING.values())
    for at, (name, data) in enumerate(hostile_images(num, seed)):
        dialect = dialects[at % len(dialects)]
        response = post(dialect.path, dialect.body(data, "what is it?"))
        found[response.status_code] += 1
        if response.status_code == 400:
            assert dialect.field in response.text, f"{name} (number {at}, seed {seed}): {response.text}"
        else:
            assert response.status_code == 200, f"{name} (number {at}, seed {seed}): {response.text}"
    return found
