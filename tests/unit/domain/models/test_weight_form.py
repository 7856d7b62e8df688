"""The form of weights, by config.json as publishers and mlx-lm write it."""

from typing import Any

import pytest

from domain.models.weight_form import WeightForm, form_of

AFFINE = {"group_size": 64, "bits": 4}


@pytest.mark.parametrize(
    ("config", "quantization", "file_bytes", "parameters"),
    [
        ({"quantization": AFFINE, "torch_dtype": "bfloat16"}, "Q4", 4_500_000_000, "8.0B"),
        ({"quantization": {**AFFINE, "mode": "mxfp4", "group_size": 32}}, "MXFP4", 4_250_000, "8.0M"),
        ({"torch_dtype": "bfloat16"}, "BF16", 22_000_000, "11.0M"),
        ({"text_config": {"dtype": "float32"}}, "F32", 4_000, "1.0K"),
        ({"dtype": "float16"}, "F16", 100, ""),
        ({"quantization": {"bits": 4}}, "", 4_500_000_000, ""),
        ({"quantization": {"bits": 4, "group_size": 0}, "dtype": ["x"]}, "", 1, ""),
    ],
)
def test_the_form_is_read(config: dict[str, Any], quantization: str, file_bytes: int, parameters: str) -> None:
    form = form_of({"model_type": "qwen3", **config})
    assert (form.family, form.quantization) == ("qwen3", quantization)
    assert form.parameters(file_bytes) == parameters


def test_a_config_that_says_nothing_has_no_form() -> None:
    assert form_of({}) == WeightForm()
    assert WeightForm().parameters(10**9) == ""
