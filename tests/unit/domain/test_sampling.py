"""Every range of SamplingParams and StopRules, refused by the name of its field."""

import pytest

from domain.errors import InvalidRequest
from domain.request.sampling import SamplingParams, StopRules

REFUSED: list[tuple[str, dict[str, object]]] = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": float("nan")}),
    ("temperature", {"temperature": 10.5}),
    ("top_p", {"top_p": 0.0}),
    ("top_p", {"top_p": 1.1}),
    ("top_k", {"top_k": -1}),
    ("top_k", {"top_k": 2**31}),
    ("min_p", {"min_p": 1.5}),
    ("repetition_penalty", {"repetition_penalty": 0.0}),
    ("presence_penalty", {"presence_penalty": 2.1}),
    ("frequency_penalty", {"frequency_penalty": float("inf")}),
    ("logit_bias", {"logit_bias": ((1, 101.0),)}),
    ("logit_bias", {"logit_bias": tuple((id, 1.0) for id in range(2_000))}),
    ("seed", {"seed": 2**63}),
    ("top_logprobs", {"num_logprobs": 21}),
]


@pytest.mark.parametrize(("param", "values"), REFUSED)
def test_sampling_out_of_range_names_its_field(param: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        SamplingParams(**values)  # type: ignore[arg-type]
    assert refused.value.param == param


@pytest.mark.parametrize(
    ("param", "values"),
    [
        ("max_tokens", {"max_tokens": -1}),
        ("min_tokens", {"min_tokens": -1}),
        ("min_tokens", {"min_tokens": 5, "max_tokens": 4}),
        ("stop", {"stop": ("",)}),
        ("stop", {"stop": ("x",) * 17}),
        ("stop", {"stop": ("x" * 1_001,)}),
    ],
)
def test_stop_rules_out_of_range_name_their_field(param: str, values: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        StopRules(**values)  # type: ignore[arg-type]
    assert refused.value.param == param


def test_bias_outside_the_vocabulary_is_refused_before_it_reaches_the_model() -> None:
    with pytest.raises(InvalidRequest, match="key 50000000") as refused:
        SamplingParams(logit_bias=((50_000_000, 5.0),)).check_vocabulary(4096)
    assert refused.value.param == "logit_bias"
    SamplingParams(logit_bias=((4095, 5.0),)).check_vocabulary(4096)
