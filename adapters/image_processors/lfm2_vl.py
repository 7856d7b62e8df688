"""The image processor of LFM2-VL without PyTorch: that of its tower, SigLIP 2, behind the family's own cut into views.

An image is one view, at sides that the tower's patches and the projector divide. A large one is cut into tiles, in the
grid that is nearest to its shape, with a view of the whole behind them. Transformers has both in PyTorch only, in
`models/lfm2_vl/image_processing_lfm2_vl.py`, whose names, defaults and rules these are.
"""

from functools import cache
from importlib import import_module
from math import ceil, floor, sqrt
from pathlib import Path
from typing import Any, TypeAlias, cast

Size: TypeAlias = tuple[int, int]


def open_processor(folder: Path) -> Any:
    """An image processor with the settings of a folder's preprocessor_config.json, for one image at a time."""
    return _processor_class().from_pretrained(str(folder), local_files_only=True)


@cache
def _processor_class() -> Any:
    base: Any = import_module("transformers.models.siglip2.image_processing_pil_siglip2")

    class Settings(base.Siglip2ImageProcessorKwargs, total=False):  # type: ignore[misc,call-arg]
        do_image_splitting: bool

    return type("Lfm2VlImageProcessor", (Views, base.Siglip2ImageProcessorPil), {"valid_kwargs": Settings})


class Views:
    """The family's settings and views, for a class that derives from SigLIP 2's processor of transformers as well."""

    do_image_splitting, min_tiles, max_tiles, use_thumbnail = True, 2, 10, True
    downsample_factor, encoder_patch_size, tile_size = 2, 16, 512
    min_image_tokens, max_image_tokens, max_pixels_tolerance = 64, 256, 2.0

    def views(self, size: Size, *, is_split: bool) -> tuple[Size, Size]:
        """Returns rows and columns of pixels of the view of the whole image, and rows and columns of tiles, 1 and 1 for
        none."""
        unit = self.encoder_patch_size * self.downsample_factor
        least, most = self.min_image_tokens * unit**2, self.max_image_tokens * unit**2
        whole = [max(unit, round(side / unit) * unit) for side in size]
        area = whole[0] * whole[1]
        if area > most:
            shrink = sqrt(size[0] * size[1] / most)
            whole = [max(unit, floor(side / shrink / unit) * unit) for side in size]
        elif area < least:
            grow = sqrt(least / (size[0] * size[1]))
            whole = [ceil(side * grow / unit) * unit for side in size]
        height, width = (max(self.encoder_patch_size, round(side / unit) * unit) for side in size)
        is_large = height * width > most * self.max_pixels_tolerance
        is_split = is_split and not self.min_tiles == self.max_tiles == 1
        return (whole[0], whole[1]), self._tiles(size) if is_large and is_split else (1, 1)

    def _tiles(self, size: Size) -> Size:
        """Rows and columns of the grid that is nearest to the image's shape; of equally near ones the largest that the
        image fills by half."""
        height, width = size
        sides = range(1, self.max_tiles + 1)
        grids = [(rows, columns) for rows in sides for columns in sides]
        grids = [grid for grid in grids if self.min_tiles <= grid[0] * grid[1] <= self.max_tiles]
        nearest, found = float("inf"), (1, 1)
        for rows, columns in sorted(grids, key=lambda grid: grid[0] * grid[1]):
            distance = abs(width / height - columns / rows)
            is_filled = width * height > 0.5 * self.tile_size**2 * rows * columns
            if distance < nearest or (distance == nearest and is_filled):
                nearest, found = distance, (rows, columns)
        return found

    def _preprocess(self, images: Any, *, do_image_splitting: bool, resample: Any, **how: Any) -> Any:
        (image,), base = images, cast(Any, super())
        whole, (rows, columns) = self.views(image.shape[-2:], is_split=do_image_splitting)
        size_of: Any = import_module("transformers.image_utils").SizeDict

        def resized(height: int, width: int) -> Any:
            return base.resize(image=image, size=size_of(height=height, width=width), resample=resample)

        side, views = self.tile_size, list[Any]()
        if rows * columns > 1:
            cut = resized(rows * side, columns * side)
            starts = [(row * side, column * side) for row in range(rows) for column in range(columns)]
            views = [cut[:, top : top + side, left : left + side] for top, left in starts]
        if not views or self.use_thumbnail:
            views.append(resized(*whole))
        patch = self.encoder_patch_size
        longest = max(view.shape[1] * view.shape[2] for view in views) // patch**2
        how |= {"do_resize": False, "patch_size": patch, "max_num_patches": longest}
        return base._preprocess(views, resample=resample, **how)
