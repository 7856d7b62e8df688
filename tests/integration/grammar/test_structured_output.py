"""Answers with a grammar through the wired service: use case, checker, engine, and the model's own tokens."""

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest

from adapters.fake.engine import FakeEngine
from adapters.fake.options import EOS_ID, VOCAB_SIZE
from adapters.fake.tokenizer import fake_vocabulary
from adapters.llguidance.compiler import LlguidanceCompiler
from application.ports.compute import DecodeStart
from application.services.token_side.constraints import AnswerConstraint
from domain.errors import InvalidRequest
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.grammar import (
    Grammar,
    Marker,
    Reasoning,
    avoiding_grammar,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from domain.request.reasoning_budget import ReasoningBudget, ReasoningMarks
from domain.request.request import FinishReason
from domain.request.sampling import SamplingParams, StopRules
from tests.support.engines.finish_load import finish_load
from tests.support.http.servers.live_service import FAKE, answers, asking

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["C", "F"]},
        "days": {"type": "array", "items": {"type": "integer", "minimum": 1, "maximum": 31}, "maxItems": 3},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
CLOCK: dict[str, Any] = {"type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"]}
CALCULATION = 'start: term (" + " term)*\nterm: NUMBER | "(" start ")"\nNUMBER: /[0-9]{1,2}/\n'
TO_AN_END = SamplingParams(temperature=1, logit_bias=tuple((ord(end), 4.0) for end in '"}]'))


def is_valid(schema: dict[str, Any], text: str) -> bool:
    return jsonschema_rs.validator_for(schema).is_valid(json.loads(text))


GRAMMARS: dict[str, tuple[Grammar, Callable[[str], Any]]] = {
    "json_schema": (json_schema_grammar(WEATHER, "x"), lambda text: is_valid(WEATHER, text)),
    "json_object": (json_object_grammar(), lambda text: isinstance(json.loads(text), dict)),
    "regex": (regex_grammar(r"[a-c]{2,5}/\d\n?", "x"), re.compile(r"[a-c]{2,5}/[0-9]\n?").fullmatch),
    "choice": (choice_grammar(["left", "right", "é/\"'\\"], "x"), {"left", "right", "é/\"'\\"}.__contains__),
    "lark": (lark_grammar(CALCULATION, "x"), re.compile(r"[0-9+ ()]+").fullmatch),
    "avoiding": (avoiding_grammar(["a", "E|e", "\n"], "x"), lambda text: not re.search(r"a|E\|e|\n", text)),
    "reasoning": (
        replace(json_schema_grammar(CLOCK, "x"), reasoning=Reasoning((Marker("]"),))),
        lambda text: is_valid(CLOCK, text.partition("]")[2]),
    ),
}


def test_every_kind_is_held_at_once_beside_free_answers():
    free = [asking(number, None) for number in range(3)]
    alone = answers(free)
    held = [
        asking(10 + number, grammar, TO_AN_END, StopRules(max_tokens=2_000))
        for number, (grammar, _) in enumerate(GRAMMARS.values())
    ]
    together = answers([*held[:3], *free, *held[3:]])
    assert together[3:6] == alone
    for (_, is_right), answer in zip(GRAMMARS.values(), [*together[:3], *together[6:]], strict=True):
        assert answer.error is None
        assert answer.reason is FinishReason.STOP
        assert is_right(answer.text), answer.text


def test_white_space_cannot_go_on():
    spaces = SamplingParams(temperature=0, logit_bias=tuple((ord(space), 100.0) for space in " \n\t\r"))
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 3, "maxItems": 3}
    (answer,) = answers([asking(1, json_schema_grammar(schema, "x"), spaces)])
    assert answer.reason is FinishReason.STOP
    assert re.fullmatch(r"\[(true|false), (true|false), (true|false)\]", answer.text)


def test_ignoring_the_end_and_a_grammar_exclude_each_other():
    with pytest.raises(InvalidRequest, match="ignore_eos"):
        asking(1, choice_grammar(["yes"], "x"), stop=StopRules(max_tokens=5, ignore_eos=True))


def test_the_toy_service_is_what_these_tests_think():
    """Free answers are no JSON, so that a grammar that is not enforced would be seen."""
    (free,) = answers([asking(1, None, stop=StopRules(max_tokens=60))], FAKE)
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(free.text)


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
