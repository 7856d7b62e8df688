"""The tokens that end an answer, by a model's configurations. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, cast

from domain.memory.estimate import nested_config


def end_ids(*configs: Mapping[str, Any]) -> frozenset[int]:
    """The union over config.json with its text configuration, generation_config.json and the like: each may lack an id
    that another one names."""
    return frozenset(id for config in configs for level in (config, nested_config(config)) for id in _ids_of(level))


def _ids_of(config: Mapping[str, Any]) -> Iterator[int]:
    found = config.get("eos_token_id")
    named = cast("list[object]", found) if isinstance(found, list) else [found]
    yield from (id for id in named if isinstance(id, int) and not isinstance(id, bool))
