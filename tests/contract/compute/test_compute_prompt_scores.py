"""The compute port's contract on scoring a prompt: what the model thought of each of its tokens, at no second pass."""

from collections.abc import Sequence

import pytest

from application.ports.compute import DecodeStart, LoadedModel, PromptScores
from domain.request.sampling import SamplingParams
from domain.request.stream import TokenLogprob
from tests.support.mlx.contract_models import PROMPT, every_model, step
from tests.support.stores.state_replay import (
    BLOCK,
    capture,
    new_id,
    open_at,
    whole_state,
)

NUM_TOPS = 4
WARM = SamplingParams(temperature=1.1, top_p=0.9, frequency_penalty=0.4)
CUTS = (2 * BLOCK, 2 * BLOCK + 1, 3 * BLOCK, len(PROMPT) - 1)


def scored(model: LoadedModel, cuts: Sequence[int], num_tops: int = NUM_TOPS) -> list[TokenLogprob | None]:
    """Of the whole prompt in chunks that end at `cuts`."""
    id, found, at = new_id(), list[TokenLogprob | None](), 0
    model.open(id)
    for cut in cuts:
        found += model.prefill(id, PROMPT[at:cut], num_prompt_logprobs=num_tops)
        at = cut
    found += model.start_decode(id, PROMPT[at:], DecodeStart(PROMPT, WARM, seed=1), num_prompt_logprobs=num_tops)
    model.close([id])
    return found


def forced(model: LoadedModel, position: int) -> TokenLogprob:
    """What decoding says of the prompt's token at `position` when it is made to choose that."""
    id = open_at(model, PROMPT[:position])
    bias = ((PROMPT[position], 100.0),)
    sampling = SamplingParams(temperature=0, num_logprobs=NUM_TOPS, logit_bias=bias)
    model.start_decode(id, PROMPT[position - 1 : position], DecodeStart(PROMPT[:position], sampling, seed=1))
    (found,) = step(model, id).logprobs
    model.close([id])
    return found


def check_same(found: PromptScores, expected: PromptScores) -> None:
    for one, other in zip(found, expected, strict=True):
        if one is None or other is None:
            assert one is other
            continue
        assert one.token_id == other.token_id
        assert one.logprob == pytest.approx(other.logprob, abs=2e-4)
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=2e-4)


def check_rank(score: TokenLogprob) -> None:
    """A token among the likeliest has its place there; any other one a later place."""
    assert score.rank is not None
    better = sum(value > score.logprob for _, value in score.top)
    assert score.rank == better + 1 if better < len(score.top) else score.rank > len(score.top)


@pytest.mark.exact
def test_every_token_but_the_first_is_scored_as_decoding_would(model: LoadedModel) -> None:
    found = scored(model, (BLOCK, 2 * BLOCK))
    assert [one.token_id if one else None for one in found] == [None, *PROMPT[1:]]
    positions = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5, len(PROMPT) - 1)
    check_same([found[position] for position in positions], [forced(model, position) for position in positions])
    for one in found[1:]:
        assert one is not None
        check_rank(one)
    assert all(one and all(value <= 0 for value in (one.logprob, *dict(one.top).values())) for one in found[1:])


@every_model
@pytest.mark.parametrize("num_tops", [0, 4])
@pytest.mark.exact
def test_scores_do_not_depend_on_the_chunks(model: LoadedModel, num_tops: int) -> None:
    whole = scored(model, (), num_tops)
    assert {len(one.top) for one in whole if one} == {num_tops}
    check_same(scored(model, CUTS, num_tops), whole)


def test_scoring_leaves_the_same_state_and_the_same_answer(model: LoadedModel) -> None:
    plain, asked, at = new_id(), new_id(), 0
    for id in (plain, asked):
        model.open(id)
    for cut in CUTS:
        assert len(model.prefill(plain, PROMPT[at:cut])) == 0
        assert len(model.prefill(asked, PROMPT[at:cut], num_prompt_logprobs=2)) == cut - at
        assert model.position(asked) == model.position(plain) == cut
        at = cut
    if model.description.layout.is_reusable:
        assert whole_state(model, asked) == whole_state(model, plain)
    start = DecodeStart(PROMPT, WARM, seed=9)
    assert len(model.start_decode(plain, PROMPT[at:], start)) == 0
    assert len(model.start_decode(asked, PROMPT[at:], start, num_prompt_logprobs=0)) == 1
    answers = [[step(model, id).token_ids for _ in range(10)] for id in (plain, asked)]
    assert answers[0] == answers[1]
    model.close([plain, asked])


@pytest.mark.exact
def test_a_token_is_not_scored_by_what_nobody_kept(model: LoadedModel) -> None:
    """After a chunk that was not scored."""
    expected = scored(model, (BLOCK, 2 * BLOCK))
    id = new_id()
    model.open(id)
    model.prefill(id, PROMPT[:BLOCK])
    check_same(
        model.prefill(id, PROMPT[BLOCK : 2 * BLOCK], num_prompt_logprobs=NUM_TOPS),
        [None, *expected[BLOCK + 1 : 2 * BLOCK]],
    )
    rest = model.prefill(id, PROMPT[2 * BLOCK : 2 * BLOCK + 5], num_prompt_logprobs=NUM_TOPS)
    check_same(rest, expected[2 * BLOCK : 2 * BLOCK + 5])
    model.close([id])


def test_a_restored_state_does_not_know_what_it_would_have_said(model: LoadedModel) -> None:
    if not model.description.layout.is_reusable:
        pytest.skip("this model's state cannot be captured")
    captured = capture(model, PROMPT, 2 * BLOCK)
    id = new_id()
    model.open(id)
    model.prefill(id, PROMPT[:7], num_prompt_logprobs=0)
    model.restore(id, captured.position, captured.blocks, captured.snapshot)
    found = model.prefill(id, PROMPT[2 * BLOCK : 3 * BLOCK], num_prompt_logprobs=0)
    assert [one is None for one in found] == [True] + [False] * (BLOCK - 1)
    model.close([id])
