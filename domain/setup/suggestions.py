"""Models of the hub by the memory that they need: the table behind `cairn plan --suggest`.

Figures come from the models' configurations, and from the sizes of their files to two digits. `cairn plan NAME` counts
exactly once a model is here.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from domain.memory.kv_bits import KVBits

MARGIN = 1 << 30
"""Memory beside weights and state: a step's transients, the process, and a little for kept prefixes."""


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model. `weight_bytes`: of its files. `token_bytes`: the state of one token, without what recurrent and
    windowed layers hold. `note`: a remark for the choice."""

    name: str
    weight_bytes: int
    token_bytes: int
    context_length: int
    note: str

    def longest(self, memory_bytes: int, kv_bits: KVBits | None = None) -> int:
        """The longest context of one sequence in that memory; 0 for none."""
        token_bytes = self.token_bytes * (1 if kv_bits is None else kv_bits.num_bytes(_ITEM_BYTES) / _ITEM_BYTES)
        return max(0, min(self.context_length, int((memory_bytes - self.weight_bytes - MARGIN) / token_bytes)))


_ITEM_BYTES = 2
"""Of a number of bfloat16, which the table counts in."""

_GB = 10**9
SUGGESTIONS = (
    Suggestion("mlx-community/Qwen3-0.6B-4bit", int(0.34 * _GB), 114_688, 40_960, "to try it out"),
    Suggestion("mlx-community/Qwen3-1.7B-4bit", int(0.97 * _GB), 114_688, 40_960, "to try it out"),
    Suggestion("mlx-community/Qwen3-4B-Instruct-2507-4bit", int(2.3 * _GB), 147_456, 262_144, "small; answers at once"),
    Suggestion("mlx-community/Qwen3.5-4B-MLX-4bit", int(3.0 * _GB), 32_768, 262_144, "small; long contexts"),
    Suggestion("mlx-community/Qwen3.5-9B-MLX-4bit", int(6.0 * _GB), 32_768, 262_144, "agents on 16 GB"),
    Suggestion("mlx-community/gpt-oss-20b-MXFP4-Q8", int(12.1 * _GB), 24_576, 131_072, "agents; fast"),
    Suggestion("mlx-community/Qwen3.6-27B-4bit", int(16.1 * _GB), 65_536, 262_144, "agents; dense, so slower"),
    Suggestion(
        "mlx-community/Qwen3-Coder-30B-A3B-Instruct-4bit", int(17.2 * _GB), 98_304, 262_144, "agents; answers at once"
    ),
    Suggestion("mlx-community/Qwen3.6-35B-A3B-4bit", int(20.4 * _GB), 20_480, 262_144, "agents; fast, long contexts"),
    Suggestion("mlx-community/Qwen3-Next-80B-A3B-Instruct-4bit", int(44.9 * _GB), 24_576, 262_144, "agents; fast"),
    Suggestion("mlx-community/gpt-oss-120b-MXFP4-Q8", int(63.4 * _GB), 36_864, 131_072, "agents"),
    Suggestion("mlx-community/Qwen3.5-122B-A10B-4bit", int(69.6 * _GB), 24_576, 262_144, "agents"),
)
"""Smaller models first."""


def suggested(memory_bytes: int, context: int, kv_bits: KVBits | None = None) -> Iterator[tuple[Suggestion, int]]:
    """The models that fit with at least `context` tokens (or all of their own limit), the largest first, each with the
    longest context."""
    for one in reversed(SUGGESTIONS):
        longest = one.longest(memory_bytes, kv_bits)
        if longest >= min(context, one.context_length):
            yield one, longest
