"""Children of a network's modules, where Python finds them at once.

A module of MLX's is a dict, and its children are entries: `self.q_proj` fails as an attribute first, and is then asked
for by a method in Python. A step of 36 layers does so some 500 times, which takes an eighth of building its graph, and
on a fast GPU building and queueing the graph is all that a step waits for. Put into a module's own attributes as well,
they are found by the first look. The arrays stay entries only: they are replaced, by tracing for one.
"""

from typing import Any

import mlx.nn

_nn: Any = mlx.nn
_Module: Any = _nn.Module


def keep_children_at_hand(network: Any) -> None:
    """For a network that is complete: a child that is replaced later (quantised, wrapped by an adapter) would not be
    seen. Repeating it does nothing more."""
    seen: set[int] = set()
    left = [network]
    while left:
        module = left.pop()
        if id(module) in seen:
            continue
        seen.add(id(module))
        for name, value in module.items():
            children = _modules_in(value)
            if children:
                module.__dict__[name] = value
                left += children


def _modules_in(value: object) -> list[Any]:
    """A module itself, or those of a list."""
    if isinstance(value, _Module):
        return [value]
    if isinstance(value, list | tuple):
        found: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType]
        return [one for one in found if isinstance(one, _Module)]
    return []


__all__ = ("keep_children_at_hand",)
