"""A sequence whose state was lost goes on behind its output, in another state, as if nothing had happened."""

import pytest

from application.ports.compute import DecodeStart, LoadedModel
from domain.request.sampling import SamplingParams
from tests.support.mlx.contract_models import GREEDY, PROMPT, start, step
from tests.support.stores.state_replay import open_at

NUM_ALL = 12
WORN = SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.6, frequency_penalty=0.8)


@pytest.mark.parametrize(
    ("sampling", "min_tokens"),
    [(GREEDY, 0), (SamplingParams(temperature=1.0), 9), (WORN, 0)],
    ids=["greedy", "drawn", "worn"],
)
def test_output_that_was_prefilled_counts_as_decoded(
    model: LoadedModel, sampling: SamplingParams, min_tokens: int
) -> None:
    id = start(model, PROMPT, sampling, 3, min_tokens)
    expected = [token for _ in range(NUM_ALL) for token in step(model, id).token_ids]
    model.close([id])
    for num_out in (1, 5):
        fed = (*PROMPT, *expected[:num_out])
        resumed = open_at(model, fed)
        begin = DecodeStart(
            PROMPT,
            sampling,
            seed=3,
            min_tokens=min_tokens,
            eos_token_ids=model.description.eos_token_ids,
            output_ids=tuple(expected[:num_out]),
        )
        model.start_decode(resumed, fed[-1:], begin)
        tokens = [token for _ in range(NUM_ALL - num_out) for token in step(model, resumed).token_ids]
        model.close([resumed])
        assert tokens == expected[num_out:]
