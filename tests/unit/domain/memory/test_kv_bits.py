"""Keys and values in fewer bits: the setting, and what memory it saves."""

import pytest

from application.settings import ModelSettings, ModelTable
from domain.errors import InvalidRequest
from domain.memory.kv_bits import KVBits, smaller_forms
from domain.memory.needs import Load
from domain.memory.preflight import Preflight
from domain.memory.shape import DenseKV, MemoryShape, StateCost


@pytest.mark.parametrize(
    ("text", "expected"), [("off", None), ("8", KVBits(8, 8)), ("4", KVBits(4, 4)), ("8/4", KVBits(8, 4))]
)
def test_each_value_of_the_setting_is_read_and_shown_alike(text: str, expected: KVBits | None) -> None:
    assert KVBits.parse(text, 64, "model.kv_bits") == expected
    assert expected is None or expected.setting == text


@pytest.mark.parametrize(("text", "group_size"), [("3", 64), ("4/8", 64), ("", 64), ("8", 48)])
def test_other_values_are_refused_with_their_name(text: str, group_size: int) -> None:
    with pytest.raises(InvalidRequest, match=r"model\.kv_"):
        ModelSettings(kv_bits=text, kv_group_size=group_size)
    if text:
        with pytest.raises(InvalidRequest, match=r"^kv_"):
            ModelTable(kv_bits=text, kv_group_size=group_size)


def test_a_number_has_its_bits_and_its_share_of_scale_and_bias() -> None:
    sizes = [bits.num_bytes(2) / 2 for _, bits in smaller_forms()]
    assert [round(size, 2) for size in sizes] == [0.53, 0.41, 0.28]


def test_a_refusal_names_the_most_bits_that_would_fit() -> None:
    dense = DenseKV(token_bytes=1000, layer_bytes=0, item_bytes=2)
    shape = MemoryShape(states=(StateCost(1000, step=1), StateCost(0, fixed_bytes=64)), dense_kv=dense)
    copies = 64  # a chunk of one token is copied once for the prefix cache
    for room, expected in ((60_000, "8"), (45_000, "8/4"), (32_000, "4"), (20_000, "")):
        refusal = Preflight(shape, room + copies + 1000, 0).refusal(Load(100))
        assert refusal is not None
        assert refusal.kv_bits == expected
    alone = MemoryShape(states=shape.states)
    refused = Preflight(alone, 60_000, 0).refusal(Load(100))
    assert refused is not None
    assert not refused.kv_bits, "what holds no keys and values gains nothing"
