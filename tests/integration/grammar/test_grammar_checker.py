"""The grammar checker's contract: what it lets through, what it refuses, and that hostile grammars cost it little.

The hostile ones were all seen to take the library minutes, gigabytes or the whole process.
"""

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import fake_vocabulary
from adapters.llguidance.checker import TIMEOUT_S, LlguidanceChecker
from adapters.llguidance.compiler import LlguidanceCompiler
from adapters.llguidance.trial import CPU_S
from domain.errors import ComputeFailed, InvalidRequest, ServerUnavailable
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.request.grammar import (
    Grammar,
    GrammarKind,
    Marker,
    Reasoning,
    choice_grammar,
    json_object_grammar,
    json_schema_grammar,
    lark_grammar,
    regex_grammar,
)
from tests.support.patience import PATIENCE_S

SOURCE = ModelSource(ModelId("toy"), "fake:toy")
SPECIAL: Mapping[str, int] = {"<|call|>": 151_000, "</think>": 151_001}
VOCAB_SIZE = 152_000


def schema(value: Any) -> Grammar:
    return json_schema_grammar(value, "x")


def raw(value: Any) -> Grammar:
    """Past what the domain refuses itself."""
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def nested_options(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        inner = {
            "anyOf": [{"type": "object", "properties": {"a": inner, "b": inner}}, {"type": "array", "items": inner}]
        }
    return inner


def chained(number: int, link: Any) -> dict[str, Any]:
    definitions: dict[str, Any] = {f"d{at}": link({"$ref": f"#/$defs/d{at + 1}"}) for at in range(number)}
    return {"$defs": {**definitions, f"d{number}": {"type": "object"}}, "$ref": "#/$defs/d0"}


def two_ways(number: int) -> list[dict[str, Any]]:
    return [{"anyOf": [{"properties": {f"{way}{at}": {"const": 1}}} for way in "ab"]} for at in range(number)]


SOUND = {
    "object": json_object_grammar(),
    "schema": schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 10**9}}}),
    "recursion": schema({"type": "object", "properties": {"next": {"$ref": "#"}}}),
    "many definitions": schema(chained(60, lambda ref: {"type": "array", "items": ref})),
    "many properties": schema({"type": "object", "properties": {f"p{at}": {"type": "string"} for at in range(300)}}),
    "regex": regex_grammar(r"(a{1,1000}){1,3}[\d/]+", "x"),
    "choice": choice_grammar([f"choice {at}\n\"'\\/" for at in range(1_000)], "x"),
    "special token": lark_grammar('start: <|call|> "a"+ <[151001]>', "x"),
    "reasoning": replace(json_object_grammar(), reasoning=Reasoning((Marker("</think>", 151_001),))),
    "spelt reasoning": replace(choice_grammar(["a"], "x"), reasoning=Reasoning((Marker("</think>\n"),))),
}
WRONG = {
    "unknown rule": (lark_grammar("start: nowhere", "x"), "nowhere"),
    "unknown special token": (lark_grammar("start: <|nobody|>", "x"), "<|nobody|>"),
    "token out of range": (lark_grammar("start: <[999999]>", "x"), "999999"),
    "regex": (regex_grammar("(a", "x"), "regex"),
    "unsatisfiable": (schema({"properties": {"a": False}, "required": ["a"], "type": "object"}), "nsatisfiable"),
    "endless reference": (schema(chained(1, lambda _ref: {"$ref": "#/$defs/d0"})), "no text matches"),
}
HOSTILE = {
    "nested options": raw(nested_options(9)),
    "options of all": raw({"allOf": two_ways(24)}),
    "patterns of all": raw({"allOf": [{"type": "string", "pattern": f"(a|b)*(a|b){{{at}}}"} for at in range(1, 60)]}),
    "large multiple": raw({"type": "integer", "multipleOf": 99_999_937}),
    "chain of references": raw(chained(5_000, lambda ref: ref)),
    "chain of arrays": raw(chained(5_000, lambda ref: {"type": "array", "items": ref})),
    "deep regex": regex_grammar("(" * 50_000 + "a" + ")" * 50_000, "x"),
    "intersections": lark_grammar(
        "start: X\nX: " + " & ".join(f"/(a|b)*{'ab' * at}(a|b)*/" for at in range(1, 40)), "x"
    ),
    "chain of rules": lark_grammar(
        "start: r0\n" + "".join(f"r{at}: r{at + 1} r{at + 1}\n" for at in range(5_000)) + 'r5000: "a"', "x"
    ),
    "doubling terminals": lark_grammar(
        "start: X0\n" + "".join(f"X{at}: X{at + 1} X{at + 1}\n" for at in range(60)) + 'X60: "a"', "x"
    ),
    "deep parentheses": lark_grammar("start: " + "(" * 50_000 + '"a"' + ")" * 50_000, "x"),
    "deep schema in Lark": lark_grammar("start: %json " + '{"items":' * 20_000 + "{}" + "}" * 20_000, "x"),
}
COSTLY = {
    "large enum": raw({"enum": [f"v{at}" for at in range(15_000)]}),
    "repetition of repetitions": regex_grammar("((a{1,9999}|b){1,9999}){1,9999}c", "x"),
    "pattern repetition": raw({"type": "string", "pattern": "^(a{1000}){1000}$"}),
    "ambiguity": lark_grammar('start: x\nx: x x | "a" | ""', "x"),
}
"""Let through or not, what they cost while they are followed is bounded by the library's own limits."""


@pytest.fixture(scope="module")
def checker() -> LlguidanceChecker:
    return LlguidanceChecker(PATIENCE_S)


@pytest.mark.parametrize("name", SOUND)
def test_what_can_be_enforced_passes(checker: LlguidanceChecker, name: str):
    checker.check(SOUND[name], VOCAB_SIZE, SPECIAL, "field")


def refusal(checker: LlguidanceChecker, grammar: Grammar) -> str:
    with pytest.raises(InvalidRequest) as caught:
        checker.check(grammar, VOCAB_SIZE, SPECIAL, "field")
    assert caught.value.param == "field"
    assert caught.value.message.startswith("field cannot be enforced: ")
    assert caught.value.message.isprintable()
    return caught.value.message


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_reported(checker: LlguidanceChecker, name: str):
    grammar, word = WRONG[name]
    assert word in refusal(checker, grammar)


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused(checker: LlguidanceChecker, name: str):
    assert refusal(checker, HOSTILE[name])


def test_a_verdict_is_remembered_for_its_salt_only():
    checker = LlguidanceChecker(PATIENCE_S)
    wrong = Grammar(GrammarKind.LARK, "start: nowhere")
    first = refusal(checker, wrong)
    impatient = LlguidanceChecker(timeout_s=1e-4)
    with pytest.raises(ServerUnavailable):
        impatient.check(wrong, VOCAB_SIZE, SPECIAL, "field")
    checker._timeout_s = 1e-4  # a second trial would not end in time
    assert refusal(checker, wrong) == first
    with pytest.raises(ServerUnavailable):
        checker.check(wrong, VOCAB_SIZE, SPECIAL, "field", salt="another")


def test_a_busy_machine_refuses_no_grammar():
    """A trial ends by its processor time, also where a hundred other processes want that processor."""
    assert TIMEOUT_S >= 100 * CPU_S


def test_the_message_holds_no_page_of_the_grammar(checker: LlguidanceChecker):
    message = refusal(checker, lark_grammar("start: " + json.dumps("x" * 50_000) + " nowhere", "x"))
    assert len(message) < 500


@pytest.mark.parametrize("name", COSTLY)
def test_what_passes_can_be_followed_or_fails(name: str):
    with ThreadPoolExecutor(1) as workers:
        compiler = LlguidanceCompiler(workers)
        compiler.attach(SOURCE.id, fake_vocabulary())
        constraint = compiler.compile(SOURCE.id, COSTLY[name], frozenset({EOS_ID}))
        draw, reason = Random(0), ""
        try:
            for _ in range(300):
                mask = constraint.allowed()
                constraint.accept(draw.choice([id for id in range(260) if mask.allows(id)]))
        except ComputeFailed as error:
            reason = error.message
    assert not reason or "too many" in reason.lower(), reason
