"""The names of stored weights, as a network of mlx-lm wants them."""

from collections.abc import Callable, Mapping
from typing import Any

from adapters.mlx.runtime.arrays import parameters

HEAD = "lm_head."
"""A part of the output matrix's name."""

_BUFFER = "rotary_emb.inv_freq"
"""The end of the name of a table that old files hold and any network computes."""

_TEXT = "language_model."
_WRAPPED = (
    (f"model.{_TEXT}", f"{_TEXT}model."),
    ("model.vision_tower.", "vision_tower."),
    ("model.multi_modal_projector.", "multi_modal_projector."),
    ("model.", f"{_TEXT}model."),
)
"""The names that transformers has in memory and some programs store, or those of the text alone; and the names in most
files, which mlx-lm's networks of text and images have."""

Weights = dict[str, Any]


def cleaner(make: Callable[[], Any], network: Any, prefix: str) -> Callable[[Mapping[str, Any]], Weights]:
    """The network's own `sanitize`, for weights under more names than it knows. `make`: makes one like it, for a trial:
    some change their network. `prefix`: of names of weights that were saved without it, which embedding models often
    are."""
    sanitize: Callable[[Weights], Weights] = getattr(network, "sanitize", dict)
    has_head = any(HEAD in name for name, _ in parameters(network))
    modules = {name for name, _ in network.named_modules()}
    is_wrapped = _TEXT[:-1] in modules and HEAD[:-1] not in modules

    def is_taken(weights: Weights) -> bool:
        try:
            return all(
                name.rpartition(".")[0] in modules for name in make().sanitize(dict(weights)) if HEAD not in name
            )
        except Exception:  # whatever a family's code raises on names that it does not expect
            return False

    def clean(weights: Mapping[str, Any]) -> Weights:
        stored = {name: weights[name] for name in weights if not name.endswith(_BUFFER)}
        if is_wrapped:
            headed = {f"{_TEXT}{name}" if name.startswith(HEAD) else name: stored[name] for name in stored}
            if any(name.startswith(f"{_TEXT}model.") for name in stored):
                stored = headed
            elif not is_taken(stored):
                stored = headed if is_taken(headed) else {_as_wrapped(name): headed[name] for name in headed}
        found = sanitize({name if HEAD in name else f"{prefix}{name}": stored[name] for name in stored})
        # a copy of the tied embeddings, which some files hold
        return found if has_head else {name: found[name] for name in found if HEAD not in name}

    return clean


def _as_wrapped(name: str) -> str:
    return next((new + name.removeprefix(old) for old, new in _WRAPPED if name.startswith(old)), name)
