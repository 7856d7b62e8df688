"""A reasoning budget over a grammar whose reasoning ends with special tokens: both hold, on the toy engine."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from adapters.fake.engine import FakeEngine
from adapters.fake.options import EOS_ID, VOCAB_SIZE
from adapters.fake.tokenizer import fake_vocabulary
from adapters.llguidance.compiler import LlguidanceCompiler
from application.ports.compute import DecodeStart
from application.services.token_side.constraints import AnswerConstraint
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.grammar import Marker, Reasoning, choice_grammar
from domain.request.reasoning_budget import ReasoningBudget, ReasoningMarks
from domain.request.sampling import SamplingParams
from tests.support.engines.finish_load import finish_load

SOURCE = ModelSource(ModelId("toy"), "fake:toy")
ENDS = frozenset({EOS_ID})
END_ID, OPEN_ID = 259, 256
MARKS = {"a token": (END_ID,), "a token and text": (END_ID, ord("\n"))}


@pytest.fixture(scope="module")
def compiler() -> Iterator[LlguidanceCompiler]:
    with ThreadPoolExecutor(1) as workers:
        compiler = LlguidanceCompiler(workers)
        compiler.attach(SOURCE.id, fake_vocabulary())
        yield compiler


def said(compiler: LlguidanceCompiler, end_ids: tuple[int, ...], num_tokens: int, seed: int) -> list[int]:
    """What a model says that would reason for ever and may then say yes or no."""
    end = [Marker("<|pad|>", END_ID), *([Marker("\n")] if len(end_ids) > 1 else [])]
    grammar = replace(choice_grammar(["yes", "no"], "x"), reasoning=Reasoning(tuple(end)))
    held = AnswerConstraint(
        ReasoningBudget(num_tokens, ReasoningMarks((OPEN_ID,), end_ids, is_open=True)),
        VOCAB_SIZE,
        ENDS,
        compiler.compile(SOURCE.id, grammar, ENDS),
    )
    model, id, prompt = finish_load(FakeEngine().load(SOURCE, LoadOptions())), SequenceId(seed), (1, 2, 3)
    model.open(id)
    never = SamplingParams(temperature=1, logit_bias=((END_ID, -100.0),))
    model.start_decode(id, prompt, DecodeStart(prompt, never, seed=seed, eos_token_ids=ENDS, constraint=held))
    tokens = list[int]()
    while not tokens or tokens[-1] != EOS_ID:
        (result,) = model.decode([id])
        assert result.error is None, result.error
        tokens += result.token_ids
    return tokens


@pytest.mark.parametrize("marks", MARKS)
@pytest.mark.parametrize("num_tokens", [0, 1, 20])
def test_the_reasoning_ends_when_it_is_spent_and_the_answer_fits(
    compiler: LlguidanceCompiler, marks: str, num_tokens: int
) -> None:
    end_ids = MARKS[marks]
    for seed in range(3):
        tokens = said(compiler, end_ids, num_tokens, seed)
        ended = tokens.index(END_ID)
        assert num_tokens <= ended < num_tokens + 4  # a character that was begun is ended first
        after = tokens[ended + len(end_ids) : -1]
        assert tuple(tokens[ended : ended + len(end_ids)]) == end_ids
        assert bytes(after).decode().strip("\n") in ("yes", "no")
