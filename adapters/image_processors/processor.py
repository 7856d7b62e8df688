"""Image processors by transformers: files to tokens of a prompt and to arrays of a tower.

Both follow from one layout, so that the tokens of a prompt and the features of its images agree. What is resized, cut
and normalised is decided by the model's own preprocessor_config.json.
"""

import json
import os
from hashlib import sha256
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from adapters.image_processors import lfm2_vl
from adapters.image_processors.layouts import LAYOUTS, MARKERS, Layout
from application.ports.vision import DecodeImage, ImageTokens, Pixels, PreparedArray, PreparedImage, ProcessedImage
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.id_row import IdRow
from domain.models.capability import Capability
from domain.models.model_card import ModelSource
from domain.request.media import Detail, Image

_TRIED = (512, 512)

_UNUSED = frozenset({"pixel_attention_mask", "num_crops", "num_soft_tokens_per_image"})
"""Arrays that no tower needs for an image alone; one whose views have shapes of their own needs their masks."""


class ImageProcessors:
    """Loads the image processors of folders in Hugging Face format. No code of a folder is run."""

    def __init__(self, decode: DecodeImage) -> None:
        self._decode = decode

    def load(self, source: ModelSource) -> "HfImageProcessor | None":
        if Capability.SEE not in source.use.capabilities:
            return None
        folder = Path(source.path)
        try:
            config = cast("dict[str, Any]", json.loads((folder / "config.json").read_text(encoding="utf-8")))
            os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")  # Cairn uses no PyTorch
            processor = _opened(folder, config["model_type"])
            LAYOUTS[config["model_type"]](processor, config, _TRIED, False)  # what it needs is there
        except Exception as error:
            raise ModelLoadFailed(f"the image processor of {folder} could not be loaded: {_reason(error)}") from error
        return HfImageProcessor(folder, processor, config, self._decode)


def _opened(folder: Path, model_type: str) -> Any:
    """The processor of a folder by transformers, which has that of one family in PyTorch only."""
    if model_type == "lfm2_vl":
        return lfm2_vl.open_processor(folder)
    return import_module("transformers").AutoImageProcessor.from_pretrained(
        str(folder), backend="pil", local_files_only=True, trust_remote_code=False
    )


class HfImageProcessor:
    """An ImageProcessor of one model folder."""

    def __init__(self, folder: Path, processor: Any, config: dict[str, Any], decode: DecodeImage) -> None:
        """Raises ModelLoadFailed if the tokenizer has no token for images."""
        self._processor, self._config, self._decode = processor, config, decode
        self._lay_out = LAYOUTS[config["model_type"]]
        # The tokenizer, which may take a hundred megabytes, is read for its few tokens of images only.
        image_id = config.get("image_token_id", config.get("image_token_index"))
        written = config.get("boi_token_index", image_id)  # Gemma 3's template writes the marker
        try:
            tokenizer = import_module("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))
            placeholder: str | None = tokenizer.id_to_token(written) if isinstance(written, int) else None
        except Exception as error:
            raise ModelLoadFailed(f"{folder / 'tokenizer.json'} cannot be read: {error}") from error
        self._markers: dict[str, list[int]] = {
            text: tokenizer.encode(text, add_special_tokens=False).ids for text in MARKERS
        }
        if placeholder is None or not isinstance(image_id, int):
            raise ModelLoadFailed(f"{folder / 'config.json'} names no token for images that its tokenizer has")
        self.placeholder, self._image_id = placeholder, image_id
        kept = json.dumps(processor.to_dict(), sort_keys=True, default=str)
        self._identity = sha256(f"{kept} {version('transformers')} {version('pillow')}".encode()).digest()

    def process(self, image: Image) -> ProcessedImage:
        pixels = self._decode(image.data, image.field)
        layout = self._layout(pixels, image)
        return ProcessedImage(self._tokens(layout, image), self._prepared(layout, pixels, image))

    def _tokens(self, layout: Layout, image: Image) -> ImageTokens:
        ids, embedded = list[int](), list[tuple[int, int]]()
        for part in layout.parts:
            if isinstance(part, int):
                embedded.append((len(ids), len(ids) + part))
                ids += [self._image_id] * part
            else:
                ids += [self._config[part]] if part in self._config else self._markers[part]
        digest = sha256(self._identity + image.digest).digest()
        is_whole = embedded == [(0, len(ids))]
        return ImageTokens(IdRow(ids), digest, () if is_whole else tuple(embedded), layout.grid)

    def _prepared(self, layout: Layout, pixels: Pixels, image: Image) -> PreparedImage:
        array = np.frombuffer(pixels.rgb, np.uint8).reshape(pixels.height, pixels.width, 3)
        given: dict[str, Any] = {"do_convert_rgb": False, "input_data_format": "channels_last", **layout.changes}
        try:
            found = self._processor(images=[array], return_tensors="np", **given)
        except MemoryError:
            raise
        except Exception as error:
            raise _refusal(image, error) from error
        unused = _UNUSED if "spatial_shapes" not in found else _UNUSED - {"pixel_attention_mask"}
        arrays = {name: _plain(np.asarray(array)) for name, array in found.items() if name not in unused}
        return PreparedImage(arrays, sum(part for part in layout.parts if isinstance(part, int)))

    def _layout(self, pixels: Pixels, image: Image) -> Layout:
        size, is_low = (pixels.height, pixels.width), image.detail is Detail.LOW
        try:
            if 0 not in (layout := self._lay_out(self._processor, self._config, size, is_low)).parts:
                return layout
            raise ValueError("its sides are too unequal")
        except Exception as error:
            raise _refusal(image, error) from error


def _plain(array: NDArray[Any]) -> PreparedArray:
    kept = array.astype(np.float32) if array.dtype == np.float64 else array
    return PreparedArray(str(kept.dtype), kept.shape, kept.tobytes())


def _reason(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]


def _refusal(image: Image, error: Exception) -> InvalidRequest:
    name = image.field or "image"
    return InvalidRequest(f"{name}: the model cannot take the image: {_reason(error)}", param=image.field or None)
