"""In which order MLX computes a graph: the reverse of a breadth-first walk from what is asked for.

The walk is at most `MAX_WIDTH` arrays wide; where it would be wider, it goes down first and comes back later. The order
decides how many temporaries are alive at once, and whether the buffers of all layers grow at the same time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

MAX_WIDTH = 20
"""MLX's default of MLX_BFS_MAX_WIDTH."""

_RESULTS = -1


def evaluation_order(inputs: Mapping[int, Sequence[int]], results: Sequence[int]) -> list[int]:
    """Operations by number: `inputs` are those that an operation reads from, `results` those that are asked for."""
    reads = {**_needed(inputs, results), _RESULTS: results}
    uses = Counter(found for read in reads.values() for found in read)
    order, position = [_RESULTS], 0
    halted: list[tuple[int, int]] = []
    while position < len(order) or halted:
        if position < len(order):
            number, start = order[position], 0
            position += 1
        else:
            number, start = halted.pop()
        for place in range(start, len(reads[number])):
            if len(order) - position >= MAX_WIDTH:
                halted.append((number, place))
                break
            found = reads[number][place]
            uses[found] -= 1
            if uses[found] == 0:
                order.append(found)
    return order[:0:-1]


def _needed(inputs: Mapping[int, Sequence[int]], results: Sequence[int]) -> dict[int, Sequence[int]]:
    """The part of `inputs` that the results depend on."""
    found: dict[int, Sequence[int]] = {}
    waiting = list(results)
    while waiting:
        number = waiting.pop()
        if number not in found:
            found[number] = inputs[number]
            waiting += inputs[number]
    return found


__all__ = ("MAX_WIDTH", "evaluation_order")
