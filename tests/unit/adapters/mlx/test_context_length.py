"""The length of a model's context, by the order of its sources."""

import json
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.loading.context import context_of
from domain.models.model_card import ContextLength
from domain.models.state_layout import LayerState, StateKind, StateLayout

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32_768}
NO_LAYERS = StateLayout(())


@pytest.mark.parametrize(
    ("config", "length", "origin"),
    [
        ({"model_type": "llama", "max_position_embeddings": 8_192}, 8_192, "config.json"),
        ({"model_type": "x", "n_ctx": 99, "text_config": {"max_position_embeddings": 7}}, 7, "config.json"),
        ({"max_position_embeddings": 131_072, "rope_scaling": YARN}, 131_072, "config.json"),
        ({"max_position_embeddings": 32_768, "rope_scaling": YARN}, 131_072, "config.json, scaled positions"),
        (
            {"text_config": {"n_ctx": 9, "rope_parameters": YARN}},
            131_072,
            "config.json, scaled positions",
        ),
        ({"max_position_embeddings": 9, "rope_scaling": {"type": "yarn", "factor": "4"}}, 9, "config.json"),
        ({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, 131_072, "transformers' default"),
        ({"model_type": "gemma3", "text_config": {}}, 131_072, "transformers' default"),
        ({"model_type": "mimo"}, 32_768, "mlx-lm's default"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_the_length_and_its_origin(config: dict[str, Any], length: int, origin: str) -> None:
    assert context_of(config, NO_LAYERS, {}) == ContextLength(length, origin)


def test_what_no_configuration_says_is_read_elsewhere_or_assumed(tmp_path: Path) -> None:
    recurrent = StateLayout((LayerState(StateKind.RECURRENT, "ArraysCache"),))
    written = tmp_path / "tokenizer_config.json"
    assert context_of({"model_type": "nowhere"}, NO_LAYERS, {}, tmp_path).length == 4_096
    assert context_of({"model_type": "mamba2"}, recurrent, {}, tmp_path).origin == "recurrent layers only"
    for most, length in [(10**30, 4_096), (777, 777)]:
        written.write_text(json.dumps({"model_max_length": most}))
        assert context_of({"model_type": "nowhere"}, NO_LAYERS, {}, tmp_path).length == length


def test_the_settings_raise_a_context_as_far_as_there_are_positions() -> None:
    table = {"model.wpe.weight": mx.zeros((2_048, 4))}
    learned = context_of({"n_positions": 1_024}, NO_LAYERS, table)
    assert (learned.of(512).length, learned.of(9_999).length) == (512, 2_048)
    rotary = context_of({"max_position_embeddings": 1_024}, NO_LAYERS, {})
    assert rotary.of(512) == ContextLength(512, "model.context_length")
    assert rotary.of(9_999).length == 9_999
    assert "beyond the 1024 of config.json" in rotary.of(9_999).origin
