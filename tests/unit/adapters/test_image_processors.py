"""Image processors: the tokens of an image are as many as its tower's features, and laid out as mlx-vlm does it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer

from adapters.image_processors.processor import HfImageProcessor, ImageProcessors
from adapters.mlx.vlm.library import vlm_module
from application.ports.vision import Pixels
from domain.errors import InvalidRequest, ModelLoadFailed
from domain.ids import ModelId
from domain.models.capability import GENERATES, Capability, ModelUse
from domain.models.model_card import ModelSource
from domain.request.media import Detail, Image
from tests.support.arrays import opened
from tests.support.mlx import tiny_tokenizers
from tests.support.patience import PATIENCE_S

SIZES = [(64, 48), (48, 64), (100, 100), (300, 20), (17, 90), (1, 1), (8, 200), (33, 32), (512, 512)]

_HALF = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
_TILES = [f"<row_{row}_col_{column}>" for row in range(1, 5) for column in range(1, 5)]
_VISION = {"image_size": 32, "patch_size": 4}
FAMILIES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "idefics3": (
        {"vision_config": _VISION, "scale_factor": 2},
        {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": 128},
            "max_image_size": {"longest_edge": 32},
        },
        ["<image>", "<fake_token_around_image>", "<global-img>", *_TILES],
    ),
    "lfm2_vl": (
        {"vision_config": _VISION, "downsample_factor": 2},
        {
            **{"image_processor_type": "Lfm2VlImageProcessorFast", "encoder_patch_size": 4, "tile_size": 32},
            **{"min_image_tokens": 4, "max_image_tokens": 16, "do_resize": False, "resample": 3},
        },
        [
            "<image>",
            "<|image_start|>",
            "<|img_thumbnail|>",
            "<|image_end|>",
            *(f"<|img_{tile[1:-1]}|>" for tile in _TILES),
        ],
    ),
    "pixtral": (
        {"vision_config": _VISION},
        {
            "image_processor_type": "PixtralImageProcessor",
            "size": {"longest_edge": 64},
            "patch_size": {"height": 4, "width": 4},
        },
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    ),
    "mistral3": (
        {"vision_config": _VISION, "spatial_merge_size": 2},
        {
            "image_processor_type": "PixtralImageProcessor",
            "size": {"longest_edge": 64},
            "patch_size": {"height": 4, "width": 4},
        },
        ["[IMG]", "[IMG_BREAK]", "[IMG_END]"],
    ),
    "llava": (
        {"vision_config": {**_VISION, "model_type": "clip_vision_model"}},
        {
            "image_processor_type": "CLIPImageProcessor",
            "size": {"shortest_edge": 32},
            "crop_size": {"height": 32, "width": 32},
        },
        ["<image>"],
    ),
    "qwen2_5_vl": (
        {"vision_config": _VISION},
        {
            "image_processor_type": "Qwen2VLImageProcessor",
            "patch_size": 4,
            "merge_size": 2,
            "min_pixels": 256,
            "max_pixels": 8192,
        },
        ["<|image_pad|>"],
    ),
    "gemma3": (
        {"vision_config": _VISION, "mm_tokens_per_image": 16},
        {"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 32, "width": 32}, "do_pan_and_scan": True},
        ["<image_soft_token>", "<start_of_image>", "<end_of_image>"],
    ),
    "gemma4": (
        {"vision_config": _VISION},
        {
            **{"image_processor_type": "Gemma4ImageProcessor", "patch_size": 4},
            **{"pooling_kernel_size": 2, "max_soft_tokens": 140},
        },
        ["<|image|>", "<|image>", "<image|>"],
    ),
}


def gray(data: bytes, field: str = "") -> Pixels:
    """Decodes `WIDTHxHEIGHT`."""
    width, height = map(int, data.decode().split("x"))
    random = np.random.default_rng(width * height)
    return Pixels(width, height, random.integers(0, 255, 3 * width * height, dtype=np.uint8).tobytes())


def sized(width: int, height: int, detail: Detail = Detail.AUTO) -> Image:
    return Image(f"{width}x{height}".encode(), detail, "messages[0].content[1]")


def written(name: str, folder: Path, num_added: int | None = None) -> ModelSource:
    config, processor, tokens = FAMILIES[name]
    tokenizer = tiny_tokenizers.byte_level()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in tokens[:num_added]])
    tiny_tokenizers.write_folder(folder, tokenizer)
    ids = {"image_token_id": tokenizer.token_to_id(tokens[0])}
    if name.startswith("gemma"):
        suffix = "index" if name == "gemma3" else "id"
        ids |= {f"{edge}_token_{suffix}": tokenizer.token_to_id(tokens[at]) for at, edge in ((1, "boi"), (2, "eoi"))}
    (folder / "config.json").write_text(json.dumps({"model_type": name, **config, **ids}))
    (folder / "preprocessor_config.json").write_text(json.dumps({**_HALF, **processor}))
    return ModelSource(ModelId(name), str(folder), use=ModelUse(GENERATES | {Capability.SEE}))


@pytest.fixture(scope="module", params=sorted(FAMILIES))
def processor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> HfImageProcessor:
    found = ImageProcessors(gray).load(written(request.param, tmp_path_factory.mktemp(request.param)))
    assert isinstance(found, HfImageProcessor)
    return found


def num_features(name: str, arrays: dict[str, Any]) -> int:
    """The features that the family's tower makes of these arrays."""
    pixels = arrays["pixel_values"]
    if name == "idefics3":
        return int(pixels.shape[1]) * 16
    if name in ("pixtral", "mistral3"):
        height, width = arrays["image_sizes"][0] // (4 if name == "pixtral" else 8)
        assert tuple(arrays["image_sizes"][0]) == pixels.shape[2:]
        return int(height * width)
    if name == "gemma3":
        return 16
    if name == "lfm2_vl":
        assert (arrays["pixel_attention_mask"].sum(axis=1) == arrays["spatial_shapes"].prod(axis=1)).all()
        return int((arrays["spatial_shapes"] // 2).prod(axis=1).sum())
    if name == "gemma4":
        return int((arrays["image_position_ids"][0, :, 0] >= 0).sum()) // 4
    return int(pixels.shape[2] * pixels.shape[3]) // 16 if name == "llava" else len(pixels) // 4


@pytest.mark.parametrize("detail", list(Detail))
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_the_tokens_of_an_image_are_as_many_as_its_features(
    processor: HfImageProcessor, size: tuple[int, int], detail: Detail, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["processor"]
    image = sized(*size, detail)

    tokens, prepared = processor.process(image)
    arrays = opened(prepared)

    runs = tokens.embedded or ((0, len(tokens.token_ids)),)
    assert sum(end - start for start, end in runs) == prepared.num_features == num_features(name, arrays)
    if "image_grid_thw" in arrays:
        assert tuple(arrays["image_grid_thw"][0] // [1, 2, 2]) == tokens.grid


def test_low_detail_takes_no_more_tokens_and_is_another_image(processor: HfImageProcessor) -> None:
    low, high = (processor.process(sized(512, 512, detail)).tokens for detail in (Detail.LOW, Detail.HIGH))
    assert len(low.token_ids) <= len(high.token_ids)
    assert low.digest != high.digest
    assert high.digest == processor.process(sized(512, 512, Detail.HIGH)).tokens.digest


@pytest.mark.parametrize(
    ("name", "are_added"),
    [(name, True) for name in ("idefics3", "lfm2_vl", "pixtral", "mistral3", "gemma3", "gemma4")]
    + [("idefics3", False)],
)
def test_the_markers_are_those_of_mlx_vlm(name: str, are_added: bool, tmp_path: Path) -> None:
    """`are_added`: that of Idefics 3 spells most of them by several tokens."""
    pytest.importorskip("mlx_vlm")
    source = written(name, tmp_path, None if are_added else 2)
    processor = ImageProcessors(gray).load(source)
    assert processor is not None
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    found = processor.process(sized(64, 48)).tokens
    assert list(found.token_ids) == tokenizer.encode(expanded(name), add_special_tokens=False).ids
    (id,) = tokenizer.encode(processor.placeholder).ids
    assert processor.placeholder == ("<start_of_image>" if name == "gemma3" else FAMILIES[name][2][0])
    assert 0 <= id < tokenizer.get_vocab_size()


def expanded(name: str) -> str:
    """The text that mlx-vlm writes for an image of 64 x 48 pixels."""
    if name == "idefics3":
        module = vlm_module("models.idefics3.processing_idefics3")
        return str(module.get_image_prompt_string(3, 4, 16, "<fake_token_around_image>", "<image>", "<global-img>"))
    if name == "lfm2_vl":
        tiles = "".join(f"<|img_row_{row}_col_{column}|>{'<image>' * 16}" for row in (1, 2) for column in (1, 2, 3))
        return f"<|image_start|>{tiles}<|img_thumbnail|>{'<image>' * 12}<|image_end|>"
    if name == "gemma4":
        return f"<|image>{'<|image|>' * 130}<image|>"
    if name == "gemma3":
        return f"\n\n<start_of_image>{'<image_soft_token>' * 16}<end_of_image>\n\n"
    rows, columns = (12, 16) if name == "pixtral" else (6, 8)
    return "[IMG_BREAK]".join(["[IMG]" * columns] * rows) + "[IMG_END]"


@pytest.mark.parametrize("size", [*SIZES[:6], *SIZES[7:], (640, 480), (480, 640), (1000, 90)], ids=str)
def test_the_views_of_lfm2_vl_are_those_of_mlx_vlm(size: tuple[int, int], tmp_path: Path) -> None:
    """Not of (8, 200), of which mlx-vlm leaves out what is beyond its number of patches."""
    pytest.importorskip("mlx_vlm")
    processor = ImageProcessors(gray).load(written("lfm2_vl", tmp_path))
    assert processor is not None
    module = vlm_module("models.lfm2_vl.processing_lfm2_vl")
    pixels = gray(f"{size[0]}x{size[1]}".encode())
    image = np.frombuffer(pixels.rgb, np.uint8).reshape(pixels.height, pixels.width, 3)
    expected = module.Lfm2VlNumpyImageProcessor(**_HALF, **FAMILIES["lfm2_vl"][1])([image])
    found = opened(processor.process(sized(*size)).prepared)
    assert found["spatial_shapes"].tolist() == expected["spatial_shapes"].tolist()
    for view, other, shape in zip(
        found["pixel_values"], expected["pixel_values"], found["spatial_shapes"], strict=True
    ):
        assert np.abs(view[: shape.prod()] - other[: shape.prod()]).max() < 1e-5


@pytest.mark.parametrize(
    ("name", "reason"),
    [("qwen2_5_vl", "aspect ratio"), ("pixtral", "sides are too unequal"), ("lfm2_vl", "sides are too unequal")],
)
def test_an_image_that_the_model_cannot_take_names_its_field(name: str, reason: str, tmp_path: Path) -> None:
    processor = ImageProcessors(gray).load(written(name, tmp_path))
    assert processor is not None
    with pytest.raises(InvalidRequest, match=f": the model cannot take the image: .*{reason}") as error:
        processor.process(sized(3, 2000))
    assert error.value.param == "messages[0].content[1]"


def test_no_library_of_arrays_on_a_device_is_needed() -> None:
    code = "import adapters.image_processors.processor, sys; assert not {'mlx', 'torch', 'mlx_vlm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_models_without_a_processor_are_refused_with_the_reason(tmp_path: Path) -> None:
    source = written("pixtral", tmp_path)
    assert ImageProcessors(gray).load(ModelSource(source.id, source.path)) is None
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(ModelLoadFailed, match=r"the image processor of .* could not be loaded: "):
        ImageProcessors(gray).load(source)
    written("pixtral", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadFailed, match=r"tokenizer.json cannot be read"):
        ImageProcessors(gray).load(source)
