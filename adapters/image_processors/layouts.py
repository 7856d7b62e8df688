"""The tokens of an image in a prompt, by family: how many, and which markers stand between them.

    idefics3, smolvlm   tiles in rows, each behind its marker, and the whole image     <fake><row_1_col_1> I I I ...
    pixtral, mistral3   rows of patches, each but the last with a marker behind it     I I I [IMG_BREAK] ... [IMG_END]
    llava               as many for every image                                        I I I
    Qwen                rows and columns, which are positions as well                  I I I
    gemma3              as many for every image, between two markers                   \\n\\n <boi> I I I <eoi> \\n\\n
    gemma4              up to so many, between two markers                             <boi> I I I <eoi>

A size is computed by the functions that the family's processor of transformers resizes by.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

Changes: TypeAlias = Mapping[str, Any]


class Layout(NamedTuple):
    """The tokens of one image. `parts`: markers by name, and numbers of tokens that get features. `grid`: frames, rows
    and columns, where they are positions."""

    parts: Sequence[str | int]
    grid: tuple[int, int, int] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """A processor of transformers with the model's config.json. `vision`: its part about the tower."""

    processor: Any
    config: Mapping[str, Any]
    vision: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LayoutFamily:
    """The layout of a family's images. `layout`: of a size. `changes`: arguments of the processor in place of its
    settings, for low detail or any other. `markers`: every marker that a layout may have,
    as text or as the setting of config.json that has its id. `placeholder`: the setting
    with the token that a template writes. `unused`: arrays of the processor that the tower does not take."""

    layout: Callable[[Settings, Size, Changes], Layout]
    changes: Callable[[Settings, bool], Changes] = lambda _settings, _is_low: {}
    markers: Sequence[str] = ()
    placeholder: str = "image_token_id"
    unused: frozenset[str] = frozenset()


def _module(family: str) -> Any:
    return import_module(f"transformers.models.{family}.image_processing_pil_{family}")


def _blank(size: Size) -> Any:
    """An image of a size that takes no memory, for functions that look at its shape."""
    return np.broadcast_to(np.uint8(0), (3, *size))


# ---- tiles ---------------------------------------------------------------------------------------------------------

_FAKE, _WHOLE, MOST_TILES = "<fake_token_around_image>", "<global-img>", 16


def _tile_marker(row: int, column: int) -> str:
    return f"<row_{row + 1}_col_{column + 1}>"


def _tiles(settings: Settings, size: Size, changes: Changes) -> Layout:
    processor, vision = settings.processor, settings.vision
    count = (int(vision["image_size"]) // int(vision["patch_size"])) ** 2 // int(settings.config["scale_factor"]) ** 2
    rows, columns = _num_tiles(processor, size) if changes["do_image_splitting"] else (0, 0)
    if max(rows, columns) > MOST_TILES:
        raise ValueError(f"it has {rows} rows and {columns} columns of tiles, and at most {MOST_TILES} are taken")
    parts: list[str | int] = []
    for row in range(rows):
        for column in range(columns):
            parts += [_FAKE, _tile_marker(row, column), count]
        parts.append("\n" if row < rows - 1 else "\n\n")
    return Layout([*parts, _FAKE, _WHOLE, count, _FAKE])


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


# ---- rows of patches -----------------------------------------------------------------------------------------------


def _rows(settings: Settings, size: Size, changes: Changes) -> Layout:
    patch = _merged_patch(settings)
    longest = changes["size"]["longest_edge"]
    found = _module("pixtral").get_resize_output_image_size(_blank(size), longest, patch, "channels_first")
    rows, columns = (side // patch for side in found)
    return Layout([*(columns, "[IMG_BREAK]") * (rows - 1), columns, "[IMG_END]"])


def _merged_patch(settings: Settings) -> int:
    return int(settings.vision["patch_size"]) * int(settings.config.get("spatial_merge_size", 1))


def _row_changes(settings: Settings, is_low: bool) -> Changes:
    patch, longest = _merged_patch(settings), int(settings.processor.size["longest_edge"])
    longest = min(LOW_SIDE, longest) if is_low else longest
    return {"patch_size": {"height": patch, "width": patch}, "size": {"longest_edge": longest}}


# ---- as many for every image ---------------------------------------------------------------------------------------


def _square(settings: Settings, size: Size, changes: Changes) -> Layout:
    cut = settings.processor.crop_size if getattr(settings.processor, "do_center_crop", False) else None
    height, width = (int((cut or settings.processor.size)[name]) for name in ("height", "width"))
    patch = int(settings.vision["patch_size"])
    count = (height // patch) * (width // patch)
    has_class = settings.vision.get("model_type") == "clip_vision_model"
    if settings.config.get("vision_feature_select_strategy", "default") == "default":
        return Layout([count + has_class - 1])
    return Layout([count + has_class])


def _pooled(settings: Settings, size: Size, changes: Changes) -> Layout:
    count = int(settings.config.get("mm_tokens_per_image", 256))
    return Layout(["\n\n", "boi_token_index", count, "eoi_token_index", "\n\n"])


# ---- up to so many -------------------------------------------------------------------------------------------------


def _soft(settings: Settings, size: Size, changes: Changes) -> Layout:
    processor = settings.processor
    patch, pooled = int(processor.patch_size), int(processor.pooling_kernel_size)
    height, width = _module("gemma4").get_aspect_ratio_preserving_size(
        *size, patch, changes["max_soft_tokens"] * pooled**2, pooled
    )
    return Layout(["boi_token_id", (height // patch) * (width // patch) // pooled**2, "eoi_token_id"])


def _soft_changes(settings: Settings, is_low: bool) -> Changes:
    return {"max_soft_tokens": LOW_TOKENS if is_low else int(settings.processor.max_soft_tokens)}


# ---- a grid --------------------------------------------------------------------------------------------------------


def _grid(settings: Settings, size: Size, changes: Changes) -> Layout:
    processor = settings.processor
    bounds = changes["size"]
    factor = int(processor.patch_size) * int(processor.merge_size)
    height, width = _module("qwen2_vl").smart_resize(
        *size, factor=factor, min_pixels=bounds["shortest_edge"], max_pixels=bounds["longest_edge"]
    )
    rows, columns = height // factor, width // factor
    return Layout([rows * columns], (1, rows, columns))


def _grid_changes(settings: Settings, is_low: bool) -> Changes:
    bounds = settings.processor.size
    least, most = bounds["shortest_edge"], bounds["longest_edge"]
    return {"size": {"shortest_edge": least, "longest_edge": min(most, max(least, LOW_SIDE**2)) if is_low else most}}


_TILES = LayoutFamily(
    _tiles,
    lambda settings, is_low: {"do_image_splitting": settings.processor.do_image_splitting and not is_low},
    markers=[
        *(_FAKE, _WHOLE, "\n", "\n\n"),
        *(_tile_marker(row, column) for row in range(MOST_TILES) for column in range(MOST_TILES)),
    ],
    unused=frozenset({"pixel_attention_mask"}),  # an image alone is not padded
)
_ROWS = LayoutFamily(_rows, _row_changes, ("[IMG_BREAK]", "[IMG_END]"))
_GRID = LayoutFamily(_grid, _grid_changes)

LAYOUTS: Mapping[str, LayoutFamily] = {
    **dict.fromkeys(("idefics3", "smolvlm"), _TILES),
    **dict.fromkeys(("pixtral", "mistral3"), _ROWS),
    "llava": LayoutFamily(_square),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), _GRID),
    "gemma3": LayoutFamily(
        _pooled,
        markers=("\n\n", "boi_token_index", "eoi_token_index"),
        changes=lambda _settings, _is_low: {"do_pan_and_scan": False},
        placeholder="boi_token_index",
        unused=frozenset({"num_crops"}),
    ),
    "gemma4": LayoutFamily(
        _soft,
        _soft_changes,
        markers=("boi_token_id", "eoi_token_id"),
        unused=frozenset({"num_soft_tokens_per_image"}),
    ),
}
"""By the model type of config.json."""
