"""The settings of rotary positions, by the names that networks read."""

from typing import Any

import pytest

from domain.models.position_settings import with_older_names

FULL = {"rope_type": "default", "rope_theta": 1e6}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}


def bases(value: float) -> dict[str, Any]:
    return {"rope_theta": value, "rotary_emb_base": value}


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ({"rope_theta": 5e5, "rope_type": "default"}, {**bases(5e5), "rope_scaling": None}),
        ({"partial_rotary_factor": 0.5}, {"partial_rotary_factor": 0.5, "rotary_pct": 0.5, "rope_scaling": None}),
        (YARN, {"rope_scaling": {"type": "yarn", **YARN}}),
        ({"mrope_section": [1, 2]}, {"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}),
        (
            {"sliding_attention": {"rope_theta": 1e4}, "full_attention": FULL},
            {**bases(1e6), "rope_local_base_freq": 1e4, "rope_scaling": None},
        ),
        ({"sliding_attention": FULL}, {**bases(1e6), "rope_local_base_freq": 1e6, "rope_scaling": None}),
    ],
)
def test_the_older_names_are_added_at_the_level_of_the_newer_one(stated: Any, expected: dict[str, Any]) -> None:
    config = {"model_type": "x", "rope_parameters": stated}
    assert with_older_names(config) == {**config, **expected}
    nested = with_older_names({"model_type": "y", "text_config": config})
    assert nested == {"model_type": "y", "text_config": {**config, **expected}}


def test_a_name_that_a_file_states_itself_stays() -> None:
    config = {"rope_theta": 7.0, "rotary_emb_base": 7.0, "rope_scaling": None, "rope_parameters": {**YARN, **FULL}}
    found = with_older_names(config)
    assert found["rotary_emb_base"] == 7.0
    assert found["rope_theta"] == 7.0
    assert found["rope_scaling"]["factor"] == 4.0


@pytest.mark.parametrize("stated", [None, [], "x", 1, {}, {"full_attention": {}}])
def test_nothing_is_added_where_nothing_is_stated(stated: Any) -> None:
    config = {"rope_theta": 7.0, "rope_parameters": stated, "text_config": {"rope_parameters": stated}}
    assert with_older_names(config) is config
    assert with_older_names({}) == {}
