"""The text networks of mlx-vlm as trunks: called, named and cached as mlx-lm's networks are.

mlx-vlm's classes of a family are built whole, because the family's `sanitize` may ask any part of it; only the text's
part is kept. Arrays are made lazily, so that what is not kept costs nothing.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import partial
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches
from adapters.mlx.speculation.drafting import nn
from adapters.mlx.vlm.caches import plain_caches, translated
from adapters.mlx.vlm.families import family_named
from adapters.mlx.vlm.library import vlm_module
from adapters.mlx.vlm.mends import mend
from domain.errors import ModelLoadFailed

_TEXT = "language_model."
"""The beginning of the names of the text's weights."""

_PARTS = (("VisionModel", "vision_config"), ("LanguageModel", "text_config"), ("AudioModel", "audio_config"))
"""The classes that rename weights after the whole model has, in mlx-vlm's order, with their settings."""


class VlmTrunk(nn.Module):  # type: ignore[misc]
    """The text network of one of mlx-vlm's models."""

    def __init__(self, package: Any, known: Any) -> None:
        """`package`: the family's; `known`: its configuration, of its own class."""
        nn.Module.__init__(self)
        whole = package.Model(known)
        self.language_model = whole.language_model
        self.sanitize = partial(_sanitized, package, whole, known)
        if hasattr(whole, "cast_predicate"):
            self.cast_predicate = whole.cast_predicate

    def __call__(self, tokens: mx.array, cache: Any = None, input_embeddings: mx.array | None = None) -> mx.array:
        embedded = {} if input_embeddings is None else {"inputs_embeds": input_embeddings}
        found: mx.array = self.language_model(tokens, cache=cache, **embedded).logits  # its first name differs
        return found

    @property
    def layers(self) -> Any:
        return self.language_model.layers

    def make_cache(self) -> Caches:
        own = getattr(self.language_model, "make_cache", None)
        return plain_caches(len(self.layers)) if own is None else translated(own())


def _sanitized(package: Any, whole: Any, known: Any, weights: dict[str, mx.array]) -> dict[str, mx.array]:
    """Keeps the text's weights, by the names and in the shapes of mlx-vlm's network."""
    found = dict(weights)
    if hasattr(whole, "sanitize"):
        found = whole.sanitize(found)
    for name, settings in _PARTS:
        part = getattr(package, name, None)
        if hasattr(part, "sanitize") and getattr(known, settings, None) is not None:
            found = cast(Any, part)(getattr(known, settings)).sanitize(found)
    return {name: array for name, array in found.items() if name.startswith(_TEXT)}


@dataclass(frozen=True, slots=True)
class VlmArguments:
    """The configuration of a family, as mlx-lm's classes of arguments are used. `package`: the family's."""

    package: Any

    def from_dict(self, config: Mapping[str, Any]) -> Any:
        """Returns the configuration of the family's class. Raises ModelLoadFailed for weights that mlx-vlm would
        convert, and for a prompt that is no sequence of states."""
        text = cast("dict[str, Any]", config.get("text_config") or config.get("llm_config") or {})
        for level in (config, text):
            if level.get("quantization_config") and not config.get("quantization"):
                found = level["quantization_config"]
                method = str(found.get("quant_method") or found.get("quantization"))[:40]
                raise ModelLoadFailed(
                    f"its weights are quantised by {method!r}, which is read for families of mlx-lm only: take a"
                    " conversion for MLX, or the unquantised weights"
                )
        settings: dict[str, Any] = {"vision_config": {}, "audio_config": {}, **config, "text_config": dict(text)}
        known = self.package.ModelConfig.from_dict(settings)
        for part in ("text", "vision", "perceiver", "projector", "audio"):
            name, make = f"{part}_config", getattr(self.package, f"{part.title()}Config", None)
            if make is not None and hasattr(known, name) and settings.get(name) is not None:
                setattr(known, name, make.from_dict(settings[name]))
        if getattr(known, "prefix_lm", False):
            raise ModelLoadFailed("it reads a prompt in both directions (prefix_lm): no part of it has a state")
        _name_quantised_layers(config, getattr(known, "quantization", None))
        return known

    def defaults(self) -> dict[str, object]:
        """The defaults of the family's classes, for settings that a file leaves out; the text's come first."""
        classes = [getattr(self.package, name, None) for name in ("ModelConfig", "TextConfig")]
        known = [field for one in classes if one is not None for field in fields(one)]
        return {field.name: field.default for field in known if field.default is not MISSING}


def _name_quantised_layers(config: Mapping[str, Any], renamed: Mapping[str, Any] | None) -> None:
    """Adds the layers in a configuration's `quantization` by their names in the network: a file may leave out the
    text's prefix, and a family has other names. `renamed`: the family's form of it, None for none."""
    quantisation = cast("dict[str, Any] | None", config.get("quantization"))
    if quantisation is not None:
        named = {**quantisation, **(renamed or {})}
        layers = [name for name in named if isinstance(named[name], bool | dict)]
        quantisation |= {_TEXT + name.removeprefix(_TEXT): named[name] for name in layers}


def vlm_classes_of(config: Mapping[str, Any]) -> tuple[Callable[[Any], VlmTrunk], VlmArguments]:
    """The class of a configuration's network, and of its arguments. Raises ImportError."""
    family = family_named(config["model_type"])
    package = vlm_module(f"models.{family}")
    mend(family)
    return partial(VlmTrunk, package), VlmArguments(package)
