"""Image files to pixels: what is shown, what is refused, and what damaged files cost."""

from io import BytesIO

import pytest
from PIL import Image as Pillow

from adapters.pillow import decoder
from adapters.pillow.decoder import decode
from application.ports.vision import Pixels
from domain.errors import InvalidRequest
from tests.support.effort import drawn
from tests.support.http.hostile_images import BOMBS, FORMATS, STRANGERS, hostile_images, picture, png, zeros

RED, WHITE = (255, 0, 0), (255, 255, 255)


def saved(image: Pillow.Image, kind: str = "PNG", **fields: object) -> bytes:
    out = BytesIO()
    image.save(out, kind, **fields)
    return out.getvalue()


def pixel(pixels: Pixels, x: int, y: int) -> tuple[int, ...]:
    at = 3 * (y * pixels.width + x)
    return tuple(pixels.rgb[at : at + 3])


def refusal(data: bytes) -> str:
    with pytest.raises(InvalidRequest) as refused:
        decode(data, "messages[0].images[0]")
    assert refused.value.param == "messages[0].images[0]"
    assert refused.value.message.startswith("messages[0].images[0]: the image cannot be used: ")
    return refused.value.message.partition("used: ")[2]


@pytest.mark.parametrize("kind", FORMATS)
def test_each_format_is_shown(kind: str) -> None:
    pixels = decode(picture(kind, (40, 30)))
    assert (pixels.width, pixels.height, len(pixels.rgb)) == (40, 30, 3 * 40 * 30)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(mode: str) -> None:
    kind = "JPEG" if mode == "CMYK" else "PNG"
    white = {"I;16": 2**16 - 1, "CMYK": (0, 0, 0, 0)}.get(mode, "white")
    image = Pillow.new(mode, (3, 2), white)  # type: ignore[arg-type]
    assert pixel(decode(saved(image, kind)), 2, 1) == WHITE


def test_sixteen_bits_are_scaled_to_eight() -> None:
    assert pixel(decode(saved(Pillow.new("I;16", (2, 2), 0x80FF))), 0, 0) == (0x80, 0x80, 0x80)


def test_what_is_transparent_is_white() -> None:
    image = Pillow.new("RGBA", (2, 1), (0, 0, 0, 0))
    image.putpixel((1, 0), (*RED, 255))
    pixels = decode(saved(image))
    assert (pixel(pixels, 0, 0), pixel(pixels, 1, 0)) == (WHITE, RED)


def test_a_photograph_is_upright() -> None:
    image = Pillow.new("RGB", (16, 8))
    image.paste(RED, (0, 0, 8, 8))
    exif = Pillow.Exif()
    exif[0x0112] = 6  # rotated by a quarter to the left
    pixels = decode(saved(image, "JPEG", exif=exif, quality=100))
    assert (pixels.width, pixels.height) == (8, 16)
    assert pixel(pixels, 4, 1)[0] > 200 > pixel(pixels, 4, 14)[0]


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_shown(kind: str) -> None:
    frames = [Pillow.new("RGB", (4, 4), color) for color in (RED, (0, 0, 255))]
    first = pixel(decode(saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)), 1, 1)
    assert first == RED


@pytest.mark.parametrize("name", STRANGERS)
def test_another_type_is_refused_whatever_it_is_called(name: str) -> None:
    assert refusal(STRANGERS[name]).startswith("it is no PNG, JPEG, WebP or GIF file")


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_is_refused(name: str) -> None:
    assert refusal(BOMBS[name]())


def test_a_declared_size_beyond_the_limit_is_refused_before_a_pixel_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> Pixels:
        raise AssertionError("it was decoded")

    monkeypatch.setattr(decoder, "_pixels", fails)
    assert "8000 x 8000 pixels; at most 50,000,000 are allowed" in refusal(png(8_000, 8_000, zeros(1_000)))
    assert "32768 a side" in refusal(png(40_000, 10)).replace(",", "")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_truncated_file_is_refused(kind: str) -> None:
    assert "send the whole file" in refusal(picture(kind, (200, 100))[:-200])


def test_damaged_files_are_shown_or_refused() -> None:
    for name, data in hostile_images(drawn(2_000), seed=7):
        try:
            pixels = decode(data, name)
        except InvalidRequest:  # any other error fails the test
            assert refusal(data)
        else:
            assert len(pixels.rgb) == 3 * pixels.width * pixels.height
