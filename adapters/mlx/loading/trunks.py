"""The text network of every family: mlx-lm's own, mlx-lm's for the text's type, or mlx-vlm's, in this order.

mlx-lm runs some families with images by one type of text only, or not at all. Their files have the text's weights under
names of their own; the tower's weights are left to `adapters.mlx.vision`. mlx-vlm's: see `adapters.mlx.vlm`.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, new_caches
from adapters.mlx.runtime.mlx_lm import COMPOSED, mlx_lm_classes
from adapters.mlx.speculation.drafting import nn
from adapters.mlx.vlm.families import is_vlm_family, why_unserved
from adapters.mlx.vlm.trunk import VlmTrunk, vlm_classes_of
from domain.errors import ModelLoadFailed

_LLAMA = {
    **{"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "num_attention_heads": 32},
    **{"rms_norm_eps": 1e-6, "vocab_size": 32000, "tie_word_embeddings": False},
}
"""Settings that old files of LLaVA leave out."""

_TEXT = "language_model."

_TEXT_WEIGHT = re.compile(
    r"(?:model\.)?(?:(?:language|text)_model\.(?:model\.)?(.+)|((?:layers|embed_tokens|norm|lm_head)\..+))"
)


_TEXT_ALONE = frozenset({"minimax_m3"})
"""Model types whose files have the text's settings and weights as they stand in those of a family with images, without
what nests them there."""


def why_unknown(config: Mapping[str, Any]) -> str:
    """Empty if there is code for the text of a config.json; otherwise the reason."""
    return why_unserved(_text_type(config) if config["model_type"] in COMPOSED else config["model_type"])


def classes_of(config: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """As mlx-lm's own function: the class of a configuration's network, and of its arguments. Raises
    ModelLoadFailed."""
    if why := why_unknown(config):
        raise ModelLoadFailed(why)
    if config["model_type"] not in COMPOSED:
        if is_vlm_family(config["model_type"]):
            return vlm_classes_of(config)
        found = mlx_lm_classes(config)
        return _nesting(*found) if config["model_type"] in _TEXT_ALONE else found
    model, arguments = mlx_lm_classes({"model_type": _text_type(config)})

    def from_dict(config: Mapping[str, Any]) -> Any:
        tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
        return arguments.from_dict({**_LLAMA, **tied, **config["text_config"]})

    return lambda known: TextTrunk(model(known)), SimpleNamespace(from_dict=from_dict)


def defaults_of(config: Mapping[str, Any]) -> tuple[Mapping[str, object], str]:
    """The defaults of the code of a configuration's network, for settings that a file leaves out, and the library with
    that code. Raises anything."""
    if is_vlm_family(config["model_type"]):
        return vlm_classes_of(config)[1].defaults(), "mlx-vlm"
    _, arguments = classes_of(dict(config))
    return {field.name: field.default for field in dataclasses.fields(arguments)}, "mlx-lm"


def libraries_of(network: Any, *, sees: bool) -> list[str]:
    """The libraries that compute a network. `sees`: with a tower."""
    is_vlm = any(isinstance(module, VlmTrunk) for module in network.modules())
    return ["mlx-lm", "mlx", *(["mlx-vlm"] if sees or is_vlm else [])]


def _nesting(model: Any, arguments: Any) -> tuple[Callable[[Any], Any], Any]:
    """The classes of a family with images, for a text alone."""

    def make(known: Any) -> Any:
        network = model(known)
        sanitize = network.sanitize

        def nested(weights: dict[str, mx.array]) -> Any:
            return sanitize({_TEXT + name.removeprefix(_TEXT): array for name, array in weights.items()})

        network.sanitize = nested
        return network

    def from_dict(config: Mapping[str, Any]) -> Any:
        return arguments.from_dict({"text_config": config})

    return make, SimpleNamespace(from_dict=from_dict)


def _text_type(config: Mapping[str, Any]) -> str:
    text = cast("Mapping[str, Any]", config.get("text_config") or {})
    return str(text.get("model_type") or COMPOSED[config["model_type"]])


class TextTrunk(nn.Module):  # type: ignore[misc]
    """A text model as the language model of a family that mlx-lm lacks."""

    def __init__(self, text: Any) -> None:
        nn.Module.__init__(self)
        self.language_model = text

    def __call__(self, inputs: mx.array, cache: Any = None, input_embeddings: mx.array | None = None) -> mx.array:
        found: mx.array = self.language_model(inputs, cache=cache, input_embeddings=input_embeddings)
        return found

    @property
    def layers(self) -> Any:
        return self.language_model.layers

    def make_cache(self) -> Caches:
        return new_caches(self.language_model)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """Keeps the text's weights, by mlx-lm's names."""
        found: dict[str, mx.array] = {}
        for key, array in weights.items():
            if match := _TEXT_WEIGHT.fullmatch(key):
                name = match[1] or match[2]
                found[name if name.startswith("lm_head.") else f"model.{name}"] = array
        if hasattr(self.language_model, "sanitize"):
            found = self.language_model.sanitize(found)
        return {f"language_model.{name}": array for name, array in found.items()}
