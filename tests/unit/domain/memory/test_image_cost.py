"""The estimated memory of a tower pass, by the numbers in config.json."""

from typing import Any

import pytest

from domain.memory.estimate import image_cost_of_config
from domain.memory.shape import MemoryShape

_VISION = {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16, "patch_size": 14}
_PIXTRAL = {"hidden_size": 5120, "vision_config": {**_VISION, "image_size": 1024}}
_MISTRAL3 = {**_PIXTRAL, "spatial_merge_size": 2}
_QWEN = {
    **{"text_config": {"hidden_size": 2048}},
    "vision_config": {
        **{"hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "patch_size": 16, "spatial_merge_size": 2},
        **{"temporal_patch_size": 2, "deepstack_visual_indexes": [5, 11, 17]},
    },
}
_SMOLVLM = {"hidden_size": 2048, "scale_factor": 4, "vision_config": {**_VISION, "image_size": 512, "patch_size": 16}}


@pytest.mark.parametrize(
    ("config", "pixels", "features"),
    [
        (_PIXTRAL, 3 * 14**2, 5120),
        (_MISTRAL3, 4 * 3 * 14**2, 5120),
        (_QWEN, 4 * 2 * 3 * 16**2, 4 * 2048),
        (_SMOLVLM, 16 * 3 * 16**2, 2048),
    ],
)
def test_pixels_and_features_of_a_token(config: dict[str, Any], pixels: int, features: int) -> None:
    cost = image_cost_of_config(config, 2)
    assert cost.prepared_bytes == 4 * pixels
    assert cost.feature_bytes == 2 * features


def test_a_tower_that_attends_to_the_whole_image_grows_with_its_square() -> None:
    shape = MemoryShape(image=image_cost_of_config(_MISTRAL3, 2))
    small, large = (shape.tower_bytes(tokens, 0) for tokens in (500, 2_000))
    assert large > 8 * small
    assert image_cost_of_config(_MISTRAL3, 2).tower.pair_bytes == 3 * 16 * 2 * 4**2  # patches of two tokens


def test_a_tower_of_tiles_grows_with_their_number() -> None:
    shape = MemoryShape(image=image_cost_of_config(_SMOLVLM, 2))
    assert shape.tower_bytes(640, 0) == 10 * shape.tower_bytes(64, 0)


def test_a_configuration_that_says_nothing_counts_as_a_large_tower() -> None:
    assert MemoryShape(image=image_cost_of_config({"vision_config": {}}, 2)).tower_bytes(1_000, 0) > 1 << 27
