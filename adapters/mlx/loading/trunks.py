"""Text trunks of models with images: mlx-lm's own where it has the family, and otherwise its model of the text's type.

mlx-lm runs some of these families by one type of text only, or not at all. Their files have the text's weights under
names of their own; the tower's weights are left to `adapters.mlx.vision`.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, new_caches
from adapters.mlx.runtime.mlx_lm import COMPOSED, knows_model_type, mlx_lm_module
from adapters.mlx.speculation.drafting import nn

_LLAMA = {
    **{"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "num_attention_heads": 32},
    **{"rms_norm_eps": 1e-6, "vocab_size": 32000, "tie_word_embeddings": False},
}
"""Settings that old files of LLaVA leave out."""

_PREFIXES = ("language_model.model.", "language_model.", "text_model.")


def knows_model(config: Mapping[str, Any]) -> bool:
    """True if there is code for the text of a config.json."""
    return knows_model_type(_text_type(config) if config["model_type"] in COMPOSED else config["model_type"])


def classes_of(config: dict[str, Any]) -> tuple[Callable[[Any], Any], Any]:
    """As mlx-lm's own function: the class of a configuration's network, and of its arguments."""
    if config["model_type"] not in COMPOSED:
        found: tuple[Callable[[Any], Any], Any] = mlx_lm_module("utils")._get_classes(config=config)
        return found
    model, arguments = mlx_lm_module("utils")._get_classes(config={"model_type": _text_type(config)})
    return lambda known: TextTrunk(model(known)), _Arguments(arguments)


def _text_type(config: Mapping[str, Any]) -> str:
    text = cast("Mapping[str, Any]", config.get("text_config") or {})
    return str(text.get("model_type") or COMPOSED[config["model_type"]])


class _Arguments:
    """Makes mlx-lm's arguments of the text's part of a configuration."""

    def __init__(self, arguments: Any) -> None:
        self._arguments = arguments

    def from_dict(self, config: Mapping[str, Any]) -> Any:
        tied = {name: config[name] for name in ("tie_word_embeddings",) if name in config}
        return self._arguments.from_dict({**_LLAMA, **tied, **config["text_config"]})


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
        found = {name: array for key, array in weights.items() if (name := _text_name(key))}
        if hasattr(self.language_model, "sanitize"):
            found = self.language_model.sanitize(found)
        return {f"language_model.{name}": array for name, array in found.items()}


def _text_name(key: str) -> str:
    """The name of a weight in the text model; empty if it is none of the text's."""
    key = key.removeprefix("model.")
    prefix = next((one for one in _PREFIXES if key.startswith(one)), "")
    rest = key.removeprefix(prefix)
    if rest.startswith("lm_head."):
        return rest
    if prefix:
        return rest if rest.startswith("model.") else f"model.{rest}"
    return f"model.{rest}" if rest.startswith(("layers.", "embed_tokens.", "norm.")) else ""
