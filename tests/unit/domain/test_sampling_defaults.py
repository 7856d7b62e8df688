"""What a request's sampling is where its client did not say, and who wins."""

import json
from pathlib import Path
from typing import Any

import pytest

from adapters.mlx.loading.files import advised_sampling
from domain.errors import InvalidRequest
from domain.request.sampling import SamplingDefaults, SamplingParams


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


@pytest.mark.parametrize("values", [{"temperature": 11}, {"top_p": 0}, {"min_p": 2}, {"presence_penalty": -3}])
def test_defaults_are_checked(values: Any) -> None:
    with pytest.raises(InvalidRequest, match=next(iter(values))):
        SamplingDefaults(**values)


@pytest.mark.parametrize(
    ("config", "advised"),
    [
        ({"temperature": 0.6, "top_k": 20, "do_sample": True}, SamplingDefaults(temperature=0.6, top_k=20)),
        ({"temperature": 0.6, "do_sample": False}, SamplingDefaults()),
        ({"top_p": 0, "min_p": None, "top_k": 1.5, "temperature": True}, SamplingDefaults()),
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
