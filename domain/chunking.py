"""The lengths of prefill chunks: a whole step of the grid near the start of a prompt, a part of one where it is deep.

A GPU that also draws the screen ends work that takes too long, and scores without a fused kernel take memory for every
pair of a token of the chunk and one before. Where pairs are bounded, a step is halved until they are below the bound.
The length follows from the grid line alone, so that recomputed and restored states have the same chunks.

    grid lines   0          2048  ...  65536       67584  ...  131072
    chunks       |----------|---- ... -|-----|-----|----- ... -|--|--|--|--|--
"""

from dataclasses import dataclass

LEAST_CHUNK = 128
"""Chunks are not halved below: a shorter one takes as long as this one, because each reads all weights."""

GRIDS = (512, 1024, 2048)
"""The grids to choose from."""

MOST_CHUNK_S = 1.0
"""The time that a chunk may take: other streams have to wait for it."""

DEEP_PAIRS = 2048 * 65536
"""The most pairs of a chunk on a GPU with a watchdog, which ended attention of more queries and keys at once."""

MOST_SCORE_BYTES = 1 << 30
"""The most bytes of one copy of a chunk's scores in attention without a fused kernel."""


@dataclass(frozen=True, slots=True)
class Chunking:
    """The rule of a model's chunks. `grid` in tokens; 0: the engine's. `most_pairs`: bound of the tokens of a chunk
    times the position of the next grid line; 0: no bound, which `grid` 0 has always. `least`: the shortest chunks of
    a bound."""

    grid: int = 0
    most_pairs: int = 0
    least: int = LEAST_CHUNK

    @classmethod
    def bounded(cls, grid: int, score_bytes: int) -> "Chunking":
        """The rule on a GPU with a watchdog. `score_bytes`: of a pair in attention without a fused kernel; 0 where the
        model's is fused."""
        return cls(grid, min(DEEP_PAIRS, MOST_SCORE_BYTES // score_bytes) if score_bytes else DEEP_PAIRS)

    def step(self, most: int) -> int:
        """Returns the distance of grid lines. `most`: the engine's grid."""
        return min(self.grid or most, most)

    def length_at(self, position: int, most: int) -> int:
        """Returns the length of chunks in the step of the grid around `position`; it never rises with the position.
        `most`: the engine's grid."""
        length = step = self.step(most)
        end = (position // step + 1) * step
        while self.most_pairs and length * end > self.most_pairs and self._can_halve(length):
            length //= 2
        return length

    def widest(self, chunk: int, end: int) -> list[tuple[int, int]]:
        """Returns length and end of the deepest chunks of each length, of at most `chunk` tokens and up to `end`: a
        cost that rises with both is highest at one of them, and this maximum never falls with `end`."""
        length, found = self.grid or chunk, list[tuple[int, int]]()
        while self.most_pairs and length * end > self.most_pairs and self._can_halve(length):
            found.append((min(length, chunk), self.most_pairs // length))
            length //= 2
        return [*found, (min(length, chunk), end)]

    def _can_halve(self, length: int) -> bool:
        return length % 2 == 0 and length // 2 >= self.least


PLAIN = Chunking()
"""Whole steps of the engine's grid at any position."""


def grid_of_rate(tokens_per_s: float, least: int = GRIDS[0]) -> int:
    """Returns the largest grid whose chunk takes at most MOST_CHUNK_S near the start of a prompt; at least `least`."""
    return max([least, *(grid for grid in GRIDS if grid <= tokens_per_s * MOST_CHUNK_S)])
