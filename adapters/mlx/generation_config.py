"""The sampling that a model's makers advise: what its generation_config.json says, as far as it can be used.

The file may hold what no server takes (null, a text, a `top_p` of 0). Such a value is left out and the others count: it
is advice, and no reason not to serve a model. Where it says that nothing is sampled (`do_sample`), it advises nothing.
"""

import json
from pathlib import Path
from typing import Any, cast

from adapters.mlx.json_numbers import is_number
from domain.errors import InvalidRequest
from domain.sampling_defaults import SamplingDefaults

_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def advised_sampling(folder: Path) -> SamplingDefaults:
    """Nothing where there is no such file, or none that can be read."""
    try:
        config: object = json.loads((folder / "generation_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return SamplingDefaults()
    values = cast(dict[str, Any], config) if isinstance(config, dict) else {}
    advised = SamplingDefaults()
    for key in _KEYS if values.get("do_sample") is not False else ():
        advised = _usable(key, values.get(key)).over(advised)
    return advised


def _usable(key: str, value: object) -> SamplingDefaults:
    if not is_number(value) or (key == "top_k" and not isinstance(value, int)):
        return SamplingDefaults()
    try:
        return SamplingDefaults(**{key: value})  # type: ignore[arg-type]
    except InvalidRequest:
        return SamplingDefaults()


__all__ = ("advised_sampling",)
