"""The vectorised sampler against plain arithmetic, row by row, and its independence of company."""

from collections import Counter
from math import exp

import mlx.core as mx
import pytest

from adapters.mlx.sampling.logit_rules import SamplerRow
from adapters.mlx.sampling.sampler import STEPS_AHEAD, GroupSampler, NoiseKeys, noise_keys
from application.ports.compute import DecodeStart
from domain.errors import InvalidRequest
from domain.request.sampling import SamplingParams

VOCAB = 64
ENDS = frozenset({0, 1})
GREEDY = SamplingParams(temperature=0)


def row(sampling: SamplingParams, seed: int = 1, prompt: tuple[int, ...] = (), min_tokens: int = 0) -> SamplerRow:
    return SamplerRow(DecodeStart(prompt, sampling, seed=seed, min_tokens=min_tokens, eos_token_ids=ENDS), VOCAB)


def logits_of(num_rows: int, seed: int = 0) -> mx.array:
    return mx.random.normal((num_rows, VOCAB), key=mx.random.key(seed)) * 2


def draw(logits: mx.array, sampling: SamplingParams, num_draws: int) -> Counter[int]:
    """How often each token is drawn from one row of logits, over as many seeds."""
    rows = [row(sampling, seed) for seed in range(num_draws)]
    sampled = GroupSampler(rows).sample(mx.broadcast_to(logits, (num_draws, VOCAB)))
    return Counter(sampled.read()[0])


def test_draws_follow_the_distribution() -> None:
    logits = logits_of(1)
    sampling = SamplingParams(temperature=0.8)
    weights = [exp(value / 0.8) for value in logits[0].tolist()]
    total, num_draws = sum(weights), 4000
    counts = draw(logits, sampling, num_draws)
    for token, weight in enumerate(weights):
        share = weight / total
        deviation = (num_draws * share * (1 - share)) ** 0.5
        assert abs(counts[token] - num_draws * share) <= 5 * deviation + 1


def ranked(logits: mx.array) -> list[int]:
    values = logits[0].tolist()
    return sorted(range(VOCAB), key=lambda token: -values[token])


def nucleus(logits: mx.array, top_p: float, temperature: float, candidates: list[int]) -> set[int]:
    weights = {token: exp(logits[0].tolist()[token] / temperature) for token in candidates}
    total, mass, kept = sum(weights.values()), 0.0, set[int]()
    for token in sorted(candidates, key=lambda token: -weights[token]):
        if kept and mass >= top_p:
            break
        kept.add(token)
        mass += weights[token] / total
    return kept


@pytest.mark.parametrize("others", [0, 1])
def test_filters_keep_what_they_should(others: int) -> None:
    """Alone, and beside a row whose settings force the other code path (a sort of the whole vocabulary)."""
    logits = logits_of(1, seed=3)
    order = ranked(logits)
    cases = [
        (SamplingParams(temperature=1.5, top_k=5), set(order[:5])),
        (SamplingParams(temperature=1.5, top_p=0.7), nucleus(logits, 0.7, 1.5, order)),
        (SamplingParams(temperature=1.5, top_k=12, top_p=0.6), nucleus(logits, 0.6, 1.5, order[:12])),
        (SamplingParams(temperature=1.5, top_k=10_000), set(order)),
        (
            SamplingParams(temperature=1.5, min_p=0.3),
            {t for t in order if logits[0].tolist()[t] >= logits[0].tolist()[order[0]] + 1.5 * -1.2039728},
        ),
    ]
    for sampling, allowed in cases:
        rows = [row(sampling, seed) for seed in range(1500)] + [
            row(SamplingParams(temperature=1.5, top_p=0.99))
        ] * others
        sampled = GroupSampler(rows).sample(mx.broadcast_to(logits, (len(rows), VOCAB)))
        seen = set(sampled.read()[0][:1500])
        assert seen <= allowed
        assert len(seen) >= 0.5 * len(allowed)


def test_penalties_are_those_of_the_definition() -> None:
    logits = logits_of(1, seed=5)
    values = logits[0].tolist()
    top = ranked(logits)[0]
    sampling = SamplingParams(temperature=0, presence_penalty=0.4, frequency_penalty=0.3, repetition_penalty=1.2)
    prompt = tuple(ranked(logits)[1:4])
    sampler = GroupSampler([row(sampling, prompt=prompt)])
    generated: list[int] = []
    for _ in range(30):
        expected = {}
        for token, value in enumerate(values):
            count = generated.count(token)
            if count or token in prompt:
                value = value / 1.2 if value > 0 else value * 1.2
            expected[token] = value - 0.3 * count - 0.4 * bool(count)
        (token,), _ = sampler.sample(logits).read()
        assert expected[token] == pytest.approx(max(expected.values()), abs=1e-5)
        generated.append(token)
    assert generated[0] == top
    assert len(set(generated)) > 5


def test_a_row_is_the_same_in_any_company() -> None:
    """Every kind of setting, alone and together, with rows joining and leaving between steps."""
    settings = [
        GREEDY,
        SamplingParams(temperature=1),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(temperature=1.2, top_k=20, min_p=0.02),
        SamplingParams(temperature=1, frequency_penalty=1.5, presence_penalty=0.5),
        SamplingParams(temperature=0, repetition_penalty=1.5),
        SamplingParams(temperature=1, logit_bias=((3, 4.0), (5, -100.0)), num_logprobs=3),
    ]
    steps = [logits_of(len(settings), seed=number) for number in range(10)]

    def alone(index: int) -> list[int]:
        sampler = GroupSampler([row(settings[index], seed=index, prompt=(1, 2))])
        return [sampler.sample(logits[index : index + 1]).read()[0][0] for logits in steps]

    expected = [alone(index) for index in range(len(settings))]
    rows = [row(sampling, seed=index, prompt=(1, 2)) for index, sampling in enumerate(settings)]
    output: list[list[int]] = [[] for _ in settings]
    for number, logits in enumerate(steps):
        groups = [[0, 3, 4, 6], [1, 2, 5]] if number % 3 == 0 else [[6, 5, 4, 3, 2, 1, 0]]
        for members in groups:
            sampler = GroupSampler([rows[index] for index in members])
            tokens, _ = sampler.sample(logits[mx.array(members)]).read()
            sampler.detach()
            for index, token in zip(members, tokens, strict=True):
                output[index].append(token)
    assert output == expected


def test_logprobs_are_of_the_model_before_any_change() -> None:
    logits = logits_of(1, seed=9)
    sampling = SamplingParams(temperature=0, logit_bias=((7, 50.0),), num_logprobs=4)
    (token,), found = GroupSampler([row(sampling)]).sample(logits).read()
    normal = (logits[0] - mx.logsumexp(logits[0])).tolist()
    assert token == 7
    assert found[0].logprob == pytest.approx(normal[7], abs=1e-5)
    assert [id for id, _ in found[0].top] == ranked(logits)[:4]
    assert [value for _, value in found[0].top] == pytest.approx(sorted(normal, reverse=True)[:4], abs=1e-5)


def test_keys_differ_by_seed_and_index() -> None:
    found = noise_keys((0, 1, 2, -1, 2**63 - 1, -(2**63)), [0] * 6, 500)
    assert len({tuple(key) for key in found.reshape(-1, 2).tolist()}) == 6 * 500


@pytest.mark.parametrize(
    ("seed", "index", "key"),
    [
        (0, 0, [1452414493, 269157861]),
        (1, 5, [3177489881, 2918178816]),
        (-1, 3, [3813185923, 4157207220]),
        (2**63 - 1, 499, [1380284896, 2238030439]),
        (-(2**63), 7, [4247802144, 3145961374]),
        (2**80 + 3, 2**31, [1892501719, 3662065520]),
    ],
)
def test_a_seed_means_the_same_tokens_for_ever(seed: int, index: int, key: list[int]) -> None:
    """An answer that is resumed, by this version or the next, draws what it would have drawn."""
    assert noise_keys([seed], [index]).tolist() == [[key]]
    begun = max(0, index - 3)
    assert NoiseKeys([7, seed], [0, begun]).at(index - begun).tolist()[1] == key


def test_keys_go_on_beyond_what_was_made_at_once() -> None:
    keys = NoiseKeys([3, 4], [0, 9])
    assert [keys.at(step).tolist() for step in range(3 * STEPS_AHEAD)] == noise_keys(
        [3, 4], [0, 9], 3 * STEPS_AHEAD
    ).tolist()


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="outside the vocabulary"):
        row(SamplingParams(logit_bias=((VOCAB, 1.0),)))
