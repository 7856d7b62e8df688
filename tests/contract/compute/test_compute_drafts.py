"""The compute port's contract on drafts: whatever is proposed, the tokens are those of plain decoding."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TypeAlias

import pytest

from application.ports.compute import DecodeResult, DecodeStart, Draft, LoadedModel
from domain.ids import SequenceId
from domain.models.state_layout import HitPolicy
from domain.request.sampling import SamplingParams
from tests.support.effort import some_of
from tests.support.mlx.contract_models import GREEDY, OTHER, PROMPT, every_model
from tests.support.stores.state_replay import new_id, open_at

NUM_NEW = 24
WORN = SamplingParams(temperature=1.0, repetition_penalty=1.3, presence_penalty=0.6, frequency_penalty=0.8)
SAMPLINGS = {
    "greedy": GREEDY,
    "drawn": SamplingParams(temperature=1.0, top_p=0.9),
    "worn": WORN,
    "with logprobs": SamplingParams(temperature=0.7, num_logprobs=2),
}

Drafter: TypeAlias = Callable[[Sequence[int], int, int], Draft]
"""Maps all tokens of the answer, the number given so far and the size of the vocabulary to a draft."""


def _right(expected: Sequence[int], done: int, vocab_size: int) -> Draft:
    return Draft(tuple(expected[done : done + 5]))


def _wrong(expected: Sequence[int], done: int, vocab_size: int) -> Draft:
    return Draft((*expected[done : done + 1], *((token + 1) % vocab_size for token in expected[done + 1 : done + 4])))


def _by_chance(expected: Sequence[int], done: int, vocab_size: int) -> Draft:
    chance = random.Random(done)
    guesses = ((token if chance.random() < 0.7 else chance.randrange(vocab_size)) for token in expected[done + 1 :])
    return Draft((*expected[done : done + 1], *list(guesses)[:4]))


def _at_times(expected: Sequence[int], done: int, vocab_size: int) -> Draft:
    return _by_chance(expected, done, vocab_size) if done % 3 == 0 else Draft()


def _void(expected: Sequence[int], done: int, vocab_size: int) -> Draft:
    return Draft(tuple((token + 1) % vocab_size for token in expected[done : done + 4]))


def _invalid(expected: Sequence[int], done: int, vocab_size: int) -> Draft:
    return Draft((*expected[done : done + 2], -1, vocab_size, 2**40))


def _too_long(expected: Sequence[int], done: int, vocab_size: int) -> Draft:
    return Draft((*expected[done:], *range(200)))


DRAFTERS: dict[str, Drafter] = {
    "right": _right,
    "wrong": _wrong,
    "by chance": _by_chance,
    "at times": _at_times,
    "void": _void,
    "invalid": _invalid,
    "too long": _too_long,
}


Row: TypeAlias = tuple[tuple[int, ...], SamplingParams, int]
"""The prompt, settings and seed of one sequence."""


def begin(model: LoadedModel, row: Row, ends: frozenset[int] = frozenset()) -> SequenceId:
    prompt, sampling, seed = row
    id = open_at(model, prompt)
    model.start_decode(id, prompt[-1:], DecodeStart(prompt, sampling, seed=seed, eos_token_ids=ends))
    return id


@cache
def plain(model: LoadedModel, row: Row) -> list[DecodeResult]:
    """The results of plain decoding."""
    id = begin(model, row)
    found = [result for _ in range(NUM_NEW) for result in model.decode([id])]
    model.close([id])
    return found


def tokens_of(results: Sequence[DecodeResult]) -> list[int]:
    return [token for result in results for token in result.token_ids]


def drafted(
    model: LoadedModel, rows: Sequence[Row], drafter: Drafter
) -> tuple[list[list[int]], list[list[int]], list[DecodeResult]]:
    """Decodes rows together with drafts; returns their tokens, those of plain decoding, and all results."""
    expected = [tokens_of(plain(model, row)) for row in rows]
    ids = [begin(model, row) for row in rows]
    found: dict[SequenceId, list[int]] = {id: [] for id in ids}
    answers, prompts = dict(zip(ids, expected, strict=True)), {id: row[0] for id, row in zip(ids, rows, strict=True)}
    results: list[DecodeResult] = []
    while left := [id for id in ids if len(found[id]) < NUM_NEW]:
        drafts = {id: drafter(answers[id], len(found[id]), model.description.vocab_size) for id in left}
        for result in model.decode(left, drafts):
            assert result.error is None, result.error
            found[result.id] += result.token_ids
            results.append(result)
        assert all(model.position(id) - len(prompts[id]) - len(found[id]) in (-1, 0) for id in left)
    model.close(ids)
    return [tokens[:NUM_NEW] for tokens in found.values()], expected, results


@pytest.mark.parametrize(
    ("drafter", "sampling"),
    some_of(
        [
            *((drafter, sampling) for drafter in DRAFTERS for sampling in ("greedy", "worn")),
            *(("by chance", sampling) for sampling in ("drawn", "with logprobs")),
        ],
        {
            *(("right", "greedy"), ("wrong", "worn"), ("at times", "worn"), ("void", "greedy"), ("invalid", "worn")),
            *(("too long", "greedy"), ("by chance", "worn"), ("by chance", "drawn"), ("by chance", "with logprobs")),
        },
    ),
)
@pytest.mark.exact
def test_drafts_change_no_token(model: LoadedModel, drafter: str, sampling: str) -> None:
    (found,), (expected,), _ = drafted(model, [(OTHER[:60], SAMPLINGS[sampling], 1)], DRAFTERS[drafter])
    assert found == expected


@every_model
@pytest.mark.parametrize("drafter", [_right, _by_chance, _at_times], ids=["right", "by chance", "at times"])
@pytest.mark.exact
def test_drafts_of_rows_that_share_a_pass_change_no_token(model: LoadedModel, drafter: Drafter) -> None:
    """The last row is shorter than a window that wraps around for the others."""
    rows = [(PROMPT, GREEDY, 1), (OTHER, WORN, 2), (PROMPT[:28], GREEDY, 3)]
    found, expected, _ = drafted(model, rows, drafter)
    assert found == expected


@pytest.mark.exact
def test_right_drafts_are_accepted_and_counted(model: LoadedModel) -> None:
    _, _, results = drafted(model, [(PROMPT, GREEDY, 1)], _right)
    assert all(result.num_accepted == result.num_proposed for result in results)
    assert sum(result.num_accepted for result in results) + len(results) >= NUM_NEW
    assert len(results) < NUM_NEW // 3


@pytest.mark.exact
def test_wrong_drafts_are_counted_as_rejected(model: LoadedModel) -> None:
    _, _, results = drafted(model, [(PROMPT, GREEDY, 1)], _wrong)
    assert len(results) == NUM_NEW
    assert sum(result.num_proposed for result in results) > NUM_NEW


@pytest.mark.exact
def test_log_probabilities_stand_for_each_accepted_token(model: LoadedModel) -> None:
    row = (PROMPT, SAMPLINGS["with logprobs"], 1)
    expected = [logprob for one in plain(model, row) for logprob in one.logprobs]
    _, _, results = drafted(model, [row], _by_chance)
    found = [logprob for one in results for logprob in one.logprobs][: len(expected)]
    assert [one.token_id for one in found] == [one.token_id for one in expected]
    assert [one.logprob for one in found] == pytest.approx([one.logprob for one in expected], abs=1e-4)


@pytest.mark.exact
def test_a_draft_does_not_go_beyond_a_token_that_ends_the_answer(model: LoadedModel) -> None:
    answer = tokens_of(plain(model, (PROMPT, GREEDY, 1)))
    end = answer[8]
    num_wanted = answer.index(end) + 1
    id, tokens = begin(model, (PROMPT, GREEDY, 1), frozenset({end})), list[int]()
    while len(tokens) < num_wanted:
        tokens += tokens_of(model.decode([id], {id: _too_long(answer, len(tokens), model.description.vocab_size)}))
        assert model.position(id) <= len(PROMPT) + num_wanted
    model.close([id])
    assert tokens == answer[:num_wanted]


@pytest.mark.exact
def test_min_tokens_hold_inside_a_draft(model: LoadedModel) -> None:
    """The token that ends the answer is by far the likeliest, and guessed."""
    (end, *_) = model.description.eos_token_ids
    eager = replace(GREEDY, logit_bias=((end, 100.0),))

    def answer(draft: Callable[[list[int]], Draft] | None) -> list[int]:
        id, tokens = open_at(model, PROMPT), list[int]()
        model.start_decode(
            id, PROMPT[-1:], DecodeStart(PROMPT, eager, seed=1, min_tokens=9, eos_token_ids=frozenset({end}))
        )
        while len(tokens) < 10:
            tokens += tokens_of(model.decode([id], {id: draft(tokens)} if draft else {}))
        model.close([id])
        return tokens

    expected = answer(None)
    assert expected.index(end) == 9
    assert answer(lambda done: Draft(tuple(expected[len(done) :]))) == expected
    assert answer(lambda done: Draft((*expected[len(done) : len(done) + 3], end))) == expected


def test_what_a_window_needs_inside_an_accepted_draft_is_still_held(model: LoadedModel) -> None:
    """A block may fill up at any token of a draft, and is captured after the step."""
    if not model.description.layout.is_reusable:
        pytest.skip("nothing is captured")
    answer = tokens_of(plain(model, (PROMPT, GREEDY, 1)))
    id, tokens = begin(model, (PROMPT, GREEDY, 1)), list[int]()
    sliced = {group.index for group in model.description.layout.groups if group.policy is not HitPolicy.SNAPSHOT}
    while len(tokens) < NUM_NEW // 2:
        before = model.position(id)
        tokens += tokens_of(model.decode([id], {id: _by_chance(answer, len(tokens), model.description.vocab_size)}))
        for end in range(max(before, len(PROMPT)) + 1, model.position(id) + 1):
            (groups,) = model.capture_blocks(id, [(end - 16, end)]) if sliced else ({},)
            assert groups.keys() == sliced
    model.close([id])


@every_model
@pytest.mark.exact
def test_a_state_behind_rejected_tokens_equals_a_computed_one(model: LoadedModel) -> None:
    """A sequence that was decoded with drafts is kept and taken over; what follows is what a computed state gives."""
    answer = tokens_of(plain(model, (PROMPT, GREEDY, 1)))
    id, tokens = begin(model, (PROMPT, GREEDY, 1)), list[int]()
    while len(tokens) < NUM_NEW // 2:
        tokens += tokens_of(model.decode([id], {id: _by_chance(answer, len(tokens), model.description.vocab_size)}))
    position = model.position(id)
    assert model.keep_live(id) is not None
    known, next_id = (*PROMPT, *answer)[:position], new_id()
    model.open(next_id)
    model.take_over(next_id, id, position)
    model.start_decode(next_id, (7,), DecodeStart((*known, 7), GREEDY, seed=1))
    found = tokens_of([result for _ in range(6) for result in model.decode([next_id])])
    model.close([next_id])
    assert found == tokens_of(plain(model, ((*known, 7), GREEDY, 1)))[:6]
