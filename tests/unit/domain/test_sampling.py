"""Ranges of SamplingParams and StopRules, and the defaults for fields that a client left open."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.mlx.loading.files import advised_sampling
from domain.errors import InvalidRequest
from domain.request.sampling import SamplingDefaults, SamplingParams, StopRules

REFUSED: list[tuple[str, dict[str, object]]] = [
    ("temperature", {"temperature": -0.1}),
    ("temperature", {"temperature": float("nan")}),
    ("temperature", {"temperature": 10.5}),
    ("top_p", {"top_p": -0.1}),
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


def test_no_mass_is_the_likeliest_token() -> None:
    """A filter on nothing keeps one token; drawing it takes no sort."""
    assert SamplingParams(top_p=0.0).is_greedy
    assert not SamplingParams(top_p=0.01).is_greedy


def test_a_seed_of_minus_one_is_a_random_one() -> None:
    assert SamplingParams.chosen(seed=-1).seed is None
    assert SamplingParams.chosen(seed=-2).seed == -2


def test_bias_outside_the_vocabulary_is_refused_before_it_reaches_the_model() -> None:
    with pytest.raises(InvalidRequest, match="logit_bias has 50000000"):
        SamplingParams(logit_bias=((50_000_000, 5.0),)).check_vocabulary(4096)
    with pytest.raises(InvalidRequest, match="allowed_token_ids has 4096"):
        SamplingParams(allowed_token_ids=frozenset({1, 4096})).check_vocabulary(4096)
    SamplingParams(logit_bias=((4095, 5.0),)).check_vocabulary(4096)


def test_the_client_wins_over_the_table_and_that_over_advice() -> None:
    table = SamplingDefaults(temperature=0.6, top_k=20)
    defaults = table.over(SamplingDefaults(temperature=0.1, top_p=0.9))
    assert defaults == SamplingDefaults(temperature=0.6, top_k=20, top_p=0.9)
    asked = SamplingParams.chosen(temperature=1.0, top_k=None, seed=4, num_logprobs=2)
    assert defaults.apply(asked) == SamplingParams(temperature=1.0, top_k=20, top_p=0.9, seed=4, num_logprobs=2)


def test_what_a_client_sets_to_the_neutral_value_is_chosen() -> None:
    defaults = SamplingDefaults(temperature=0.0, top_p=0.5, repetition_penalty=1.1)
    asked = SamplingParams.chosen(temperature=1.0, top_p=1.0, repetition_penalty=1.0)
    assert defaults.apply(asked) == SamplingParams()


def test_without_defaults_nothing_changes() -> None:
    asked = SamplingParams.chosen(min_p=0.1)
    assert SamplingDefaults().apply(asked) is asked
    assert SamplingDefaults(temperature=0.2).apply(SamplingParams()) == SamplingParams(), "nobody left it open"


@pytest.mark.parametrize("values", [{"temperature": 11}, {"top_p": 2}, {"min_p": 2}, {"presence_penalty": -3}])
def test_defaults_are_checked(values: Any) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(values))):
        SamplingDefaults(**values)


@pytest.mark.parametrize(
    ("config", "advised"),
    [
        ({"temperature": 0.6, "top_k": 20, "do_sample": True}, SamplingDefaults(temperature=0.6, top_k=20)),
        ({"temperature": 0.6, "do_sample": False}, SamplingDefaults()),
        ({"top_p": 2, "min_p": None, "top_k": 1.5, "temperature": True}, SamplingDefaults()),
        ({"repetition_penalty": 1.05, "top_p": "0.9"}, SamplingDefaults(repetition_penalty=1.05)),
        (f'{{"temperature": 1{"0" * 400}, "min_p": NaN, "top_k": 20}}', SamplingDefaults(top_k=20)),
        ([1], SamplingDefaults()),
        ("{", SamplingDefaults()),
        (None, SamplingDefaults()),
    ],
)
def test_what_a_model_s_makers_advise(tmp_path: Path, config: Any, advised: SamplingDefaults) -> None:
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        (tmp_path / "generation_config.json").write_text(text)
    assert advised_sampling(tmp_path) == advised
