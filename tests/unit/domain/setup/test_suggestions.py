"""Models by memory, and names that resemble one."""

import pytest

from domain.models.near_names import MAX_CHARS, near_names
from domain.setup.suggestions import SUGGESTIONS, suggested


@pytest.mark.parametrize("gib", [1, 4, 16, 64, 512])
def test_what_is_suggested_fits_and_the_largest_is_first(gib: int) -> None:
    found = list(suggested(gib << 30, 32_768))
    assert all(one.weight_bytes + longest * one.token_bytes <= gib << 30 for one, longest in found)
    assert all(longest >= 32_768 for _, longest in found)
    sizes = [one.weight_bytes for one, _ in found]
    assert sizes == sorted(sizes, reverse=True)
    assert len(found) == sum(one.longest(gib << 30) >= 32_768 for one in SUGGESTIONS)


def test_a_longer_context_needs_another_model() -> None:
    short, long = ([one.name for one, _ in suggested(8 << 30, context)] for context in (8192, 250_000))
    assert set(long) < set(short)
    assert not list(suggested(1, 1))


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("mlx-community/Qwen3-06B-4bit", "mlx-community/Qwen3-0.6B-4bit"),
        ("qwen3-0.6b-4bit", "mlx-community/Qwen3-0.6B-4bit"),
        ("Qwen/Qwen3-0.6B-4bit", "mlx-community/Qwen3-0.6B-4bit"),
        ("MLX-COMMUNITY/GPT-OSS-20B-MXFP4-Q8", "mlx-community/gpt-oss-20b-MXFP4-Q8"),
    ],
)
def test_near_names(name: str, nearest: str) -> None:
    assert near_names(name, [one.name for one in SUGGESTIONS])[0] == nearest


@pytest.mark.parametrize("name", ["zzz", "", "x" * (MAX_CHARS + 1)])
def test_nothing_is_near_to_nonsense(name: str) -> None:
    assert near_names(name, [one.name for one in SUGGESTIONS]) == []
