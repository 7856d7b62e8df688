"""A model's tower: the part that turns an image's pixels into embeddings of the trunk's width, by mlx-vlm.

mlx-vlm's class of a scheme is built with a stand-in for its language model, so that nothing of the trunk is built or
read twice, and asked for the embeddings of a prompt that is nothing but the image. So projectors, poolings and the
choice of layers are mlx-vlm's own code, whatever the scheme.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from adapters.mlx.memory import begin_peak, peak_bytes
from adapters.mlx.runtime.arrays import evaluate, from_numpy, parameters, trial
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.vision.passes import Features, VisionScheme
from adapters.mlx.vlm.library import vlm_module
from application.ports.vision import PreparedArray, PreparedImage
from domain.chunking import PLAIN
from domain.errors import ComputeFailed, ModelLoadFailed
from domain.memory.estimate import image_cost_of_config
from domain.memory.shape import MemoryShape, StepCost
from domain.printable import printable

MARGIN = 1.1
"""The factor between the largest measured peak and what is counted."""


class VisionEncoder:
    """The tower of one model, and what the model needs beside it to see. `cost`: of an image's tokens, corrected by the
    largest measured peak so far in proportion to its estimate. Compute thread only."""

    def __init__(self, module: Any, image_token: int, config: Mapping[str, Any]) -> None:
        """`module`: mlx-vlm's model without its language model, of its final type."""
        self.module, self._image_token, self._factor = module, image_token, 0.0
        self.weight_bytes = sum(array.nbytes for _, array in parameters(module))
        floats = [array for _, array in parameters(module) if mx.issubdtype(array.dtype, mx.floating)]
        self.cost = self._estimate = image_cost_of_config(config, max(array.dtype.size for array in floats))
        self.scheme = VisionScheme.of_config(config)

    def added_to(self, memory: MemoryShape) -> MemoryShape:
        chunking = PLAIN if self.scheme.is_whole else memory.chunking  # a chunk is as long as an image, at any depth
        return replace(memory, weight_bytes=memory.weight_bytes + self.weight_bytes, image=self.cost, chunking=chunking)

    def encode(self, image: PreparedImage) -> Features:
        """See `Seeing.encode_image`. No other work may be under way, since its peak is measured."""
        num_features = image.num_features
        begin_peak()
        try:
            with trial():  # a tower evaluates parts of itself
                tokens = mx.full((1, num_features), self._image_token, dtype=mx.int32)
                pixels = {name: from_numpy(_opened(array)) for name, array in image.arrays.items()}
                found = self.module.get_input_embeddings(tokens, mask=mx.ones_like(tokens), **pixels)
                embeddings, deep = found.inputs_embeds[0], found.deepstack_visual_embeds
                # Of another type they would change that of the trunk's states.
                cast_deep = () if deep is None else tuple(rows.astype(embeddings.dtype) for rows in deep)
                features = Features(embeddings, cast_deep)
                evaluate([features.embeddings, *features.deep])
        except Exception as error:
            raise ComputeFailed(f"an image could not be computed: {str(error) or type(error).__name__}") from error
        step = self._estimate.tower
        self._factor = max(self._factor, MARGIN * peak_bytes() / max(step.bytes_at(num_features, num_features), 1))
        now = StepCost(token_bytes=round(self._factor * step.token_bytes), pair_bytes=self._factor * step.pair_bytes)
        self.cost = replace(self.cost, tower=now)
        return features


def _opened(array: PreparedArray) -> NDArray[Any]:
    return np.frombuffer(array.data, array.dtype).reshape(array.shape)


def build_tower(config: Mapping[str, Any], weights: Mapping[str, mx.array], dtype: mx.Dtype) -> tuple[Any, int]:
    """Builds mlx-vlm's model without its language model on the arrays of a folder, which may be lazy; returns it with
    the id of an image's tokens. `dtype`: of the trunk's embeddings. Raises ModelLoadFailed."""
    scheme = vlm_module(f"models.{config['model_type']}")
    known = _configured(scheme, config)
    module = _without_trunk(scheme.Model, known, _StandIn(int(known.text_config.hidden_size), dtype))
    found = dict(weights)
    for part in (module, scheme.VisionModel(known.vision_config)):
        found = dict(part.sanitize(found)) if hasattr(part, "sanitize") else found
    _quantise(module, found, config)
    wanted = [name for name, _ in parameters(module)]
    if absent := next((name for name in wanted if name not in found), None):
        raise ModelLoadFailed(f"it has no weights for its images: {printable(absent)} is missing")
    module.load_weights([(name, found[name]) for name in wanted], strict=True)
    module.eval()
    return module, int(known.image_token_index if hasattr(known, "image_token_index") else known.image_token_id)


class _StandIn:
    """A language model that embeds every token as zeros and knows no positions, for mlx-vlm to put embeddings into."""

    hidden_size_per_layer_input = 0
    embed_scale = 1.0

    def __init__(self, hidden_size: int, dtype: mx.Dtype) -> None:
        self._hidden_size, self._dtype, self.model = hidden_size, dtype, self

    def embed_tokens(self, tokens: mx.array) -> mx.array:
        return mx.zeros((*tokens.shape, self._hidden_size), self._dtype)

    def get_rope_index(self, *_: object, **__: object) -> tuple[None, None]:
        return None, None


def _configured(scheme: Any, config: Mapping[str, Any]) -> Any:
    """mlx-vlm's configuration of a model. Files of some families have the text's settings at the root."""
    text = cast(Mapping[str, Any], config.get("text_config") or {})
    settings = {**text, **config, "text_config": {**config, **text}, "audio_config": None}
    known = scheme.ModelConfig.from_dict(dict(settings))
    for part in ("text", "vision"):
        name = f"{part}_config"
        if isinstance(getattr(known, name), dict):
            setattr(known, name, getattr(scheme, f"{part.title()}Config").from_dict(settings[name]))
    return known


def _without_trunk(model: Any, known: Any, stand_in: _StandIn) -> Any:
    """An instance of a scheme's class whose language model is the stand-in."""
    names: dict[str, Any] = next(one.__init__ for one in model.__mro__ if "__init__" in vars(one)).__globals__
    real = names["LanguageModel"]
    names["LanguageModel"] = lambda *_given: stand_in  # pyright: ignore[reportUnknownLambdaType]
    try:
        return model(known)
    finally:
        names["LanguageModel"] = real


def _quantise(module: Any, weights: Mapping[str, mx.array], config: Mapping[str, Any]) -> None:
    """Makes the layers that are quantised in the files into quantised ones."""
    utils = mlx_lm_module("utils")

    def quantised(path: str, layer: Any) -> Any:
        if not hasattr(layer, "to_quantized") or f"{path}.scales" not in weights:
            return False
        return utils.infer_quant_config(path, layer, weights)

    if config.get("quantization"):
        utils.nn.quantize(module, class_predicate=quantised)
