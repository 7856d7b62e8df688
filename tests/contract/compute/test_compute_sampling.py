"""The compute port's contract on choosing tokens."""

from dataclasses import replace

from application.ports.compute import LoadedModel
from domain.request.sampling import SamplingParams
from tests.support.mlx.contract_models import OTHER, PROMPT, generate, start, step


def test_one_candidate_is_the_greedy_choice(model: LoadedModel) -> None:
    greedy = generate(model, 10)
    for sampling in (SamplingParams(temperature=1, top_k=1), SamplingParams(temperature=1, top_p=1e-6)):
        assert generate(model, 10, sampling, seed=5) == greedy
    assert generate(model, 10, SamplingParams(temperature=1, min_p=1.0), seed=5) == greedy


def test_bias_commands_and_forbids(model: LoadedModel) -> None:
    wanted = next(token for token in range(100, 110) if token not in generate(model, 6))
    always = SamplingParams(temperature=0, logit_bias=((wanted, 100.0),))
    assert generate(model, 6, always) == [wanted] * 6
    first = generate(model, 1)[0]
    never = SamplingParams(temperature=0, logit_bias=((first, -100.0),))
    assert first not in generate(model, 6, never)


def test_penalties_wear_out_a_favourite(model: LoadedModel) -> None:
    favourite = next(token for token in range(100, 120) if token not in PROMPT)
    levels = (SamplingParams(temperature=0, logit_bias=((favourite, 3.0 * level),)) for level in range(1, 30))
    plain = next(sampling for sampling in levels if generate(model, 8, sampling) == [favourite] * 8)
    for worn in (
        replace(plain, frequency_penalty=1.5),
        replace(plain, repetition_penalty=10.0),
        replace(plain, presence_penalty=2.0, frequency_penalty=1.0),
    ):
        output = generate(model, 8, worn)
        assert output[0] == favourite
        assert any(token != favourite for token in output)
    in_prompt = replace(plain, logit_bias=((PROMPT[3], plain.logit_bias[0][1]),), repetition_penalty=10.0)
    assert generate(model, 1, in_prompt) != [PROMPT[3]]


def test_end_of_sequence_waits_for_min_tokens(model: LoadedModel) -> None:
    eos = min(model.description.eos_token_ids)
    eager = SamplingParams(temperature=0, logit_bias=((eos, 100.0),))
    id = start(model, PROMPT, eager, min_tokens=4)
    output = [step(model, id).token_ids[0] for _ in range(6)]
    model.close([id])
    assert eos not in output[:4]
    assert output[4:] == [eos, eos]


def test_logprobs_are_of_the_chosen_and_the_likeliest(model: LoadedModel) -> None:
    id = start(model, PROMPT, SamplingParams(temperature=0, num_logprobs=5))
    silent = start(model, OTHER)
    bare = start(model, OTHER, SamplingParams(temperature=0, num_logprobs=0))
    for _ in range(4):
        asked, other, chosen_only = model.decode([id, silent, bare])
        assert other.logprobs == ()
        assert [logprob.top for logprob in chosen_only.logprobs] == [()]
        (found,) = asked.logprobs
        assert found.token_id == asked.token_ids[0]
        assert len(found.top) == 5
        assert found.top[0] == (asked.token_ids[0], found.logprob)
        values = [value for _, value in found.top]
        assert values == sorted(values, reverse=True)
        assert all(value <= 0 for value in values)
    model.close([id, silent, bare])
