"""A loaded model's sight: its tower, its image processor, and its trunk's way to take images."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import mlx.core as mx
from numpy.typing import NDArray

from adapters.mlx.batch import Row
from adapters.mlx.memory import begin_peak, peak_bytes
from adapters.mlx.vision.families import Family
from adapters.mlx.vision.passes import Pass, chunk_pass
from adapters.mlx.vision.tower import Features, Tower
from application.ports.compute import Images
from application.ports.vision import ImageProcessor, PreparedImage
from domain.memory.shape import ImageCost, StepCost

MARGIN = 1.1


class Sight:
    """The parts that a model sees with. `cost`: of an image's tokens, corrected by the largest measured peak so far in
    proportion to its estimate."""

    def __init__(self, tower: Tower, processor: ImageProcessor, family: Family, estimate: ImageCost) -> None:
        self.tower, self.processor, self.family, self.cost = tower, processor, family, estimate
        self._estimate, self._factor = estimate.tower, 0.0

    def look(self, image: PreparedImage) -> Features:
        """See `Seeing.look`. No other work may be under way, since its peak is measured."""
        arrays, num_features = cast("tuple[Mapping[str, NDArray[Any]], int]", image)
        begin_peak()
        features = self.tower.look(arrays, num_features)
        estimated = self._estimate.bytes_at(num_features, num_features)
        self._factor = max(self._factor, peak_bytes() / max(estimated, 1))
        now = (round(MARGIN * self._factor * cost) for cost in (self._estimate.token_bytes, self._estimate.pair_bytes))
        self.cost = replace(self.cost, tower=StepCost(token_bytes=next(now), pair_bytes=next(now)))
        return features

    def pass_over(self, network: Any, tokens: mx.array, row: Row, images: Images) -> Pass:
        """The pass over the next tokens [1, length] of a row."""
        found = cast("dict[bytes, Features]", images)
        return chunk_pass(network, self.family, tokens, row.caches, row.media, row.position, found)
