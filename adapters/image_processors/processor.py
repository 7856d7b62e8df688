"""An image processor: image files to tokens of a prompt (`measure`) and to arrays of a tower (`prepare`).

Both decode the file and use one layout, so that the tokens of a prompt and the features of its images agree. What is
resized, cut and normalised is decided by the model's own preprocessor_config.json.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from adapters.image_processors.layouts import Layout, LayoutFamily, Settings
from application.ports.vision import DecodeImage, ImageTokens, Pixels
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.id_row import IdRow
from domain.request.media import Detail, Image

_LEAST_DTYPE = {np.dtype(np.float64): np.float32}


@dataclass(frozen=True, slots=True)
class ProcessedImage:
    """A PreparedImage. `arrays`: by the tower's names. `num_features`: the number of tokens that get one."""

    arrays: Mapping[str, NDArray[Any]]
    num_features: int

    @property
    def size_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


class HfImageProcessor:
    """An ImageProcessor of one model folder."""

    def __init__(self, folder: Path, family: LayoutFamily, settings: Settings, decode: DecodeImage) -> None:
        """Raises ModelLoadFailed if the tokenizer has no token for images."""
        self._family, self._settings, self._decode = family, settings, decode
        self._placeholder, self._image_id, self._markers = _read_tokens(folder, family, settings.config)
        kept = json.dumps(settings.processor.to_dict(), sort_keys=True, default=str)
        self._identity = sha256(f"{kept} {version('transformers')} {version('pillow')}".encode()).digest()

    @property
    def placeholder(self) -> str:
        return self._placeholder

    def measure(self, image: Image) -> ImageTokens:
        pixels = self._decode(image.data, image.field)
        layout = self._layout((pixels.height, pixels.width), image)
        ids, embedded = list[int](), list[tuple[int, int]]()
        for part in layout.parts:
            if isinstance(part, str):
                ids += self._markers[part]
            else:
                embedded.append((len(ids), len(ids) + part))
                ids += [self._image_id] * part
        digest = sha256(self._identity + image.digest).digest()
        whole = ((0, len(ids)),)
        return ImageTokens(IdRow(ids), digest, () if tuple(embedded) == whole else tuple(embedded), layout.grid)

    def prepare(self, image: Image) -> ProcessedImage:
        return self.process(self._decode(image.data, image.field), image)

    def process(self, pixels: Pixels, image: Image) -> ProcessedImage:
        """Returns the arrays of a decoded image."""
        layout = self._layout((pixels.height, pixels.width), image)
        array = np.frombuffer(pixels.rgb, np.uint8).reshape(pixels.height, pixels.width, 3)
        changes = {"do_convert_rgb": False, **self._changes(image)}
        try:
            found = self._settings.processor(
                images=[array], return_tensors="np", input_data_format="channels_last", **changes
            )
        except Exception as error:
            raise _refusal(image, error) from error
        arrays = {name: _narrow(array) for name, array in found.items() if name not in self._family.unused}
        return ProcessedImage(arrays, sum(part for part in layout.parts if isinstance(part, int)))

    def _layout(self, size: tuple[int, int], image: Image) -> Layout:
        try:
            layout = self._family.layout(self._settings, size, self._changes(image))
            if 0 in layout.parts:
                raise ValueError("its sides are too unequal")
        except Exception as error:
            raise _refusal(image, error) from error
        return layout

    def _changes(self, image: Image) -> Mapping[str, Any]:
        return self._family.changes(self._settings, image.detail is Detail.LOW)


def _read_tokens(
    folder: Path, family: LayoutFamily, config: Mapping[str, Any]
) -> tuple[str, int, Mapping[str, list[int]]]:
    """The placeholder, the id of an image's token, and those of the markers. The tokenizer, which may take a hundred
    megabytes, is read for them only."""
    id = config.get("image_token_id", config.get("image_token_index"))
    written = config.get(family.placeholder, id)
    try:
        tokenizer = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
        placeholder: str | None = tokenizer.id_to_token(written)
        markers = {
            name: [config[name]] if name in config else tokenizer.encode(name, add_special_tokens=False).ids
            for name in family.markers
        }
    except Exception as error:
        raise ModelLoadFailed(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
    if placeholder is None or not isinstance(id, int):
        raise ModelLoadFailed(f"{folder / 'config.json'} names no token for images that its tokenizer has")
    return placeholder, id, markers


def _narrow(array: Any) -> NDArray[Any]:
    found: NDArray[Any] = np.asarray(array)
    return found.astype(_LEAST_DTYPE.get(found.dtype, found.dtype), copy=False)


def _refusal(image: Image, error: Exception) -> InvalidRequest:
    name = image.field or "image"
    reason = str(error).strip().partition("\n")[0][:200]
    return InvalidRequest(f"{name}: the model cannot take the image: {reason}", param=image.field or None)
