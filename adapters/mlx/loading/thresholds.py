"""A network's own thresholds, made small for a while, so that a probe of a few tokens reaches beyond them.

A window of 4,096 tokens or a selection of 2,048 keys would take a prompt as long. These values decide no weight's
shape, and modules read them at every pass: with small ones the network computes something else, by the same code, and
that must depend as little on how a prompt is divided into passes.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from typing import Any, cast

_SMALL: Mapping[str, int] = {
    **dict.fromkeys(("sliding_window", "sliding_window_size", "window_size", "attention_window_size", "window"), 16),
    **dict.fromkeys(("loop_window_size", "attention_chunk_size"), 16),
    # selections of keys: the number of keys, and the keys that are always among them
    **dict.fromkeys(("index_topk", "token_budget", "indexer_budget"), 16),
    **{"index_init_tokens": 2, "index_local_tokens": 4},
    # selections of blocks
    **dict.fromkeys(("block_topk", "index_topk_blocks", "candidate_topk_blocks"), 4),
    **dict.fromkeys(("index_block_size", "candidate_block_size", "index_block", "index_keep"), 4),
}
"""The thresholds by their names in modules and configurations, with the values of a probe. All names of one thing have
one value: if a mask and its cache had different ones, the passes of a correct family would differ."""

_RATIOS = ("compress_ratios", "compress_ratio", "index_kpool")
"""Numbers of tokens that become one. Weights have their shape, so they stay."""

_LEAST_TOKENS, _MOST_RATIO = 64, 256


@contextmanager
def small_thresholds(network: Any) -> Generator[int]:
    """Makes the thresholds small, and gives the number of tokens that is far beyond them. New caches are needed."""
    held = list(_attributes(network))
    kept = [
        (values, name, values[name])
        for values in held
        for name, small in _SMALL.items()
        if isinstance(values.get(name), int) and values[name] > small
    ]
    ratio = max((ratio for values in held for name in _RATIOS for ratio in _numbers(values.get(name))), default=0)
    try:
        for values, name, _ in kept:
            values[name] = _SMALL[name]
        yield max(_LEAST_TOKENS, 3 * min(ratio, _MOST_RATIO))
    finally:
        for values, name, value in kept:
            values[name] = value


def _attributes(network: Any) -> Iterator[dict[str, Any]]:
    """The attributes of every module, and of the configurations that modules hold."""
    for module in cast(list[object], network.modules()):
        yield vars(module)
        for value in vars(module).values():
            yield from _fields(value)


def _fields(value: object) -> Iterator[dict[str, Any]]:
    """Those of a configuration and of what is nested in it; of nothing else."""
    if is_dataclass(value) and hasattr(value, "__dict__") and not isinstance(value, type):
        yield vars(value)
        for nested in vars(value).values():
            yield from _fields(nested)


def _numbers(value: object) -> Iterable[int]:
    values = cast(Iterable[object], value) if isinstance(value, list | tuple) else (value,)
    return [one for one in values if isinstance(one, int)]
