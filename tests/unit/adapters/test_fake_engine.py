"""The toy engine as other tests use it: sampling rules, scripted answers, failures, delays, thread checks."""

import threading

import pytest

from adapters.fake import EOS_ID, FakeEngine, FakeOptions, FakeTokenizer, reply_with
from application.ports.compute import DecodeResult, DecodeStart, LoadedModel
from domain.errors import ComputeFailed, ModelLoadFailed
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.sampling import SamplingParams
from tests.support.engines.finish_load import finish_load

SOURCE = ModelSource(ModelId("toy"), "nowhere")
PROMPT = tuple(b"What is the capital of France?")
GREEDY = SamplingParams(temperature=0)


def load(options: FakeOptions) -> LoadedModel:
    return finish_load(FakeEngine(default=options).load(SOURCE, LoadOptions()))


def begin(model: LoadedModel, id: int, sampling: SamplingParams, *, seed: int = 0, min_tokens: int = 0) -> SequenceId:
    sequence = SequenceId(id)
    model.open(sequence)
    model.prefill(sequence, PROMPT[:-1])
    model.start_decode(
        sequence,
        PROMPT[-1:],
        DecodeStart(PROMPT, sampling, seed=seed, min_tokens=min_tokens, eos_token_ids=frozenset({EOS_ID})),
    )
    return sequence


def answer(model: LoadedModel, id: int, sampling: SamplingParams, num_tokens: int = 30, **rest: int) -> list[int]:
    sequence = begin(model, id, sampling, **rest)
    return [model.decode([sequence])[0].token_ids[0] for _ in range(num_tokens)]


def test_scripted_answers_end_in_eos() -> None:
    tokens = answer(load(FakeOptions(reply=reply_with("Paris ♥"))), 1, GREEDY, 11)
    assert FakeTokenizer().decode(tokens[:9]) == "Paris ♥"
    assert tokens[9] == EOS_ID


def test_greedy_ignores_the_seed_and_sampling_depends_on_it_alone() -> None:
    model = load(FakeOptions(eos_every=0))
    warm = SamplingParams(temperature=1.0)
    assert answer(model, 1, GREEDY, seed=1) == answer(model, 2, GREEDY, seed=2)
    assert answer(model, 3, warm, seed=1) == answer(model, 4, warm, seed=1)
    assert answer(model, 5, warm, seed=1) != answer(model, 6, warm, seed=2)


def test_a_hook_fails_one_sequence_and_spares_the_others() -> None:
    def hook(operation: str, id: SequenceId | None, number: int) -> None:
        if (operation, id, number) == ("decode", SequenceId(1), 2):
            raise ComputeFailed("injected")

    model = load(FakeOptions(hook=hook, eos_every=0))
    both = [begin(model, 1, GREEDY), begin(model, 2, GREEDY)]
    for _ in range(2):
        assert not [result for result in model.decode(both) if result.error]
    failed, fine = model.decode(both)
    assert isinstance(failed.error, ComputeFailed)
    assert fine == DecodeResult(SequenceId(2), fine.token_ids)
    assert model.open_ids() == {SequenceId(2)}


def test_loading_fails_and_memory_is_counted() -> None:
    engine = FakeEngine({ModelId("bad"): FakeOptions(load_error="no such weights")}, FakeOptions(weight_bytes=500))
    with pytest.raises(ModelLoadFailed, match="no such weights"):
        finish_load(engine.load(ModelSource(ModelId("bad"), "p"), LoadOptions()))
    model = finish_load(engine.load(SOURCE, LoadOptions()))
    model.open(SequenceId(1))
    model.prefill(SequenceId(1), PROMPT)
    assert engine.memory()["active"] == 500 + 2 * 8 * len(PROMPT)
    engine.unload(model)
    assert engine.memory()["active"] == 0
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        finish_load(engine.load(SOURCE, LoadOptions()))


def test_another_thread_is_refused() -> None:
    model = load(FakeOptions())
    errors: list[str] = []

    def intrude() -> None:
        try:
            model.open(SequenceId(1))
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=intrude)
    thread.start()
    thread.join()
    assert errors == ["the model belongs to the thread that loaded it"]


def test_different_weights_say_different_things() -> None:
    one, other = load(FakeOptions(weights=1)), load(FakeOptions(weights=2))
    assert answer(one, 1, GREEDY) != answer(other, 1, GREEDY)
    assert one.description.weights_digest != other.description.weights_digest
