"""The tokens of an image in a prompt, by family: how many, and which markers stand between them.

    idefics3, smolvlm   tiles in rows, each behind its marker, and the whole image     <fake><row_1_col_1> I I I ...
    lfm2_vl             the same where the image is large, and otherwise the whole     <|image_start|> I I I ...
    pixtral, mistral3   rows of patches, each but the last with a marker behind it     I I I [IMG_BREAK] ... [IMG_END]
    llava               as many for every image                                        I I I
    Qwen                rows and columns, which are positions as well                  I I I
    gemma3              as many for every image, between two markers                   \\n\\n <boi> I I I <eoi> \\n\\n
    gemma4              by its size up to a limit, between two markers                 <boi> I I I <eoi>

A size is computed by the functions that the family's processor of transformers resizes by.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import ceil
from typing import Any, NamedTuple, TypeAlias

import numpy as np

LOW_SIDE = 512
"""The longest side, in pixels, of an image that is to be seen at low resolution."""

LOW_TOKENS = 70
"""The tokens of such an image of a family with a number of sizes."""

Size: TypeAlias = tuple[int, int]
"""Rows and columns of pixels."""

Config: TypeAlias = Mapping[str, Any]
"""A config.json."""


MOST_TILES = 16
"""The most tiles of an image in a row, and in a column."""

MOST_UNEQUAL = 200
"""The largest ratio of the sides where the family's rule bounds no number of tokens, as Qwen's processor has it."""

MARKERS = (
    *("\n", "\n\n", "<fake_token_around_image>", "<global-img>", "[IMG_BREAK]", "[IMG_END]"),
    *("<|image_start|>", "<|img_thumbnail|>", "<|image_end|>"),
    *(f"<row_{row + 1}_col_{column + 1}>" for row in range(MOST_TILES) for column in range(MOST_TILES)),
    *(f"<|img_row_{row + 1}_col_{column + 1}|>" for row in range(MOST_TILES) for column in range(MOST_TILES)),
)
"""Every marker that is spelled. A tokenizer has one token for each, or, as that of Idefics 3, several for some."""


class Layout(NamedTuple):
    """The tokens of one image. `parts`: numbers of tokens that get features, and markers between them, as text or as
    the setting of config.json that has its id. `changes`: arguments of the processor in place of its settings. `grid`:
    frames, rows and columns, where they are positions."""

    parts: Sequence[str | int]
    changes: Mapping[str, Any] = {}
    grid: tuple[int, int, int] | None = None


LayOut: TypeAlias = Callable[[Any, Config, Size, bool], Layout]
"""Lays out an image of a size, at low resolution or any other, by a processor of transformers and a configuration."""


def _module(family: str) -> Any:
    return import_module(f"transformers.models.{family}.image_processing_pil_{family}")


def _blank(size: Size) -> Any:
    """An image of a size that takes no memory, for functions that look at its shape."""
    return np.broadcast_to(np.uint8(0), (3, *size))


def _tiles(processor: Any, config: Config, size: Size, is_low: bool) -> Layout:
    vision, fake = config["vision_config"], "<fake_token_around_image>"
    count = (int(vision["image_size"]) // int(vision["patch_size"])) ** 2 // int(config["scale_factor"]) ** 2
    is_split = processor.do_image_splitting and not is_low
    rows, columns = _num_tiles(processor, size) if is_split else (0, 0)
    if max(rows, columns) > MOST_TILES:
        raise ValueError(f"it has {rows} rows and {columns} columns of tiles, and at most {MOST_TILES} are taken")
    parts: list[str | int] = []
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            parts += [fake, f"<row_{row}_col_{column}>", count]
        parts.append("\n" if row < rows else "\n\n")
    return Layout([*parts, fake, "<global-img>", count, fake], {"do_image_splitting": is_split})


def _num_tiles(processor: Any, size: Size) -> Size:
    side, module = int(processor.max_image_size["longest_edge"]), _module("idefics3")
    height, width = module.get_resize_output_image_size(_blank(size), processor.size["longest_edge"])
    ratio = width / height
    if width >= height:
        width = ceil(width / side) * side
        height = ceil(int(width / ratio) / side) * side
    else:
        height = ceil(height / side) * side
        width = ceil(int(height * ratio) / side) * side
    return (height // side, width // side) if max(height, width) > side else (0, 0)


def _views(processor: Any, config: Config, size: Size, is_low: bool) -> Layout:
    if max(size) > MOST_UNEQUAL * min(size):
        raise ValueError("its sides are too unequal")
    patch, factor = int(processor.encoder_patch_size), int(processor.downsample_factor)
    is_split = processor.do_image_splitting and not is_low
    (height, width), (rows, columns) = processor.views(size, is_split=is_split)
    parts: list[str | int] = ["<|image_start|>"]
    if is_cut := rows * columns > 1:
        count = ceil(processor.tile_size // patch / factor) ** 2
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                parts += [f"<|img_row_{row}_col_{column}|>", count]
    if not is_cut or processor.use_thumbnail:
        parts += [*(["<|img_thumbnail|>"] * is_cut), height * width // (patch * factor) ** 2]
    return Layout([*parts, "<|image_end|>"], {"do_image_splitting": is_split})


def _rows(processor: Any, config: Config, size: Size, is_low: bool) -> Layout:
    patch = int(config["vision_config"]["patch_size"]) * int(config.get("spatial_merge_size", 1))
    longest = int(processor.size["longest_edge"])
    longest = min(LOW_SIDE, longest) if is_low else longest
    found = _module("pixtral").get_resize_output_image_size(_blank(size), longest, patch, "channels_first")
    rows, columns = (side // patch for side in found)
    changes = {"patch_size": {"height": patch, "width": patch}, "size": {"longest_edge": longest}}
    return Layout([*(columns, "[IMG_BREAK]") * (rows - 1), columns, "[IMG_END]"], changes)


def _square(processor: Any, config: Config, size: Size, is_low: bool) -> Layout:
    shown = processor.crop_size if getattr(processor, "do_center_crop", False) else processor.size
    vision = config["vision_config"]
    patch = int(vision["patch_size"])
    count = (int(shown["height"]) // patch) * (int(shown["width"]) // patch)
    count += vision.get("model_type") == "clip_vision_model"
    return Layout([count - (config.get("vision_feature_select_strategy", "default") == "default")])


def _grid(processor: Any, config: Config, size: Size, is_low: bool) -> Layout:
    least, most = processor.size["shortest_edge"], processor.size["longest_edge"]
    most = min(most, max(least, LOW_SIDE**2)) if is_low else most
    factor = int(processor.patch_size) * int(processor.merge_size)
    found = _module("qwen2_vl").smart_resize(*size, factor=factor, min_pixels=least, max_pixels=most)
    rows, columns = (side // factor for side in found)
    return Layout([rows * columns], {"size": {"shortest_edge": least, "longest_edge": most}}, (1, rows, columns))


def _pooled(processor: Any, config: Config, size: Size, is_low: bool) -> Layout:
    count = int(config.get("mm_tokens_per_image", 256))
    return Layout(["\n\n", "boi_token_index", count, "eoi_token_index", "\n\n"], {"do_pan_and_scan": False})


def _soft(processor: Any, config: Config, size: Size, is_low: bool) -> Layout:
    patch, pooled = int(processor.patch_size), int(processor.pooling_kernel_size)
    most = LOW_TOKENS if is_low else int(processor.max_soft_tokens)
    height, width = _module("gemma4").get_aspect_ratio_preserving_size(*size, patch, most * pooled**2, pooled)
    count = (height // patch) * (width // patch) // pooled**2
    return Layout(["boi_token_id", count, "eoi_token_id"], {"max_soft_tokens": most})


LAYOUTS: Mapping[str, LayOut] = {
    **dict.fromkeys(("idefics3", "smolvlm"), _tiles),
    "lfm2_vl": _views,
    **dict.fromkeys(("pixtral", "mistral3"), _rows),
    "llava": _square,
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _grid),
    "gemma3": _pooled,
    "gemma4": _soft,
}
"""By the model type of config.json."""
