"""Random schemas of the supported kind: every answer that ends is JSON that the schema accepts.

The toy model draws its tokens from what the grammar allows, a byte a token, so that it visits what a model would not.
"""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from adapters.fake.engine import FakeEngine
from adapters.fake.options import EOS_ID
from adapters.fake.tokenizer import fake_vocabulary
from adapters.llguidance.compiler import LlguidanceCompiler
from application.ports.compute import DecodeStart, LoadedModel
from application.ports.token_constraint import TokenConstraint
from domain.errors import ComputeFailed, InvalidRequest
from domain.ids import ModelId, SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.grammar import json_schema_grammar
from domain.request.sampling import SamplingParams
from tests.support.effort import drawn
from tests.support.engines.finish_load import finish_load
from tests.support.text.json_schemas import conditional_schemas, schemas

SOURCE = ModelSource(ModelId("toy"), "fake:toy")
ENDS = frozenset({EOS_ID})
MAX_TOKENS = 1_500


@pytest.fixture(scope="module")
def compiler() -> Iterator[LlguidanceCompiler]:
    with ThreadPoolExecutor(1) as workers:
        compiler = LlguidanceCompiler(workers)
        compiler.attach(SOURCE.id, fake_vocabulary())
        yield compiler


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    return finish_load(FakeEngine().load(SOURCE, LoadOptions()))


def answer(model: LoadedModel, constraint: TokenConstraint, seed: int) -> str | None:
    """None if it did not end."""
    id, prompt, said = SequenceId(seed), (1, 2, 3), bytearray()
    bias = tuple((ord(end), 3.0) for end in '"}]')
    sampling = SamplingParams(temperature=1.2, logit_bias=bias)
    model.open(id)
    try:
        model.start_decode(
            id,
            prompt,
            DecodeStart(prompt, sampling, seed=seed, min_tokens=0, eos_token_ids=ENDS, constraint=constraint),
        )
        for _ in range(MAX_TOKENS):
            (result,) = model.decode([id])
            assert result.error is None, result.error
            if result.token_ids[0] == EOS_ID:
                return said.decode()
            said.append(result.token_ids[0])
    finally:
        model.close([id])
    return None


def parsed(text: str) -> Any:
    """JSON has numbers of any size; one that no double holds becomes the largest that one does."""
    return json.loads(text, parse_float=lambda number: min(max(float(number), -sys.float_info.max), sys.float_info.max))


def refusal(constraint: TokenConstraint) -> str:
    try:
        constraint.allowed()
    except ComputeFailed as error:
        return error.message
    return ""


REFUSALS = ("nsatisfiable", "intersection stack level exceeded", "Unable to determine if regex is empty")
"""What the compiler may say of a schema of these kinds: of `allOf` over two recursive ones, that it gives up."""


def assert_satisfied(compiler: LlguidanceCompiler, model: LoadedModel, schema: dict[str, Any], seed: int) -> None:
    constraint = compiler.compile(SOURCE.id, json_schema_grammar(schema, "schema"), ENDS)
    if reason := refusal(constraint):
        assert any(why in reason for why in REFUSALS), reason
        event("unsatisfiable")
        return
    text = answer(model, constraint, seed)
    event("cut" if text is None else "finished")
    if text is not None:
        found = jsonschema_rs.Draft202012Validator(schema)
        assert found.is_valid(parsed(text)), (text, list(found.iter_errors(parsed(text))))


@pytest.mark.slow
@settings(max_examples=drawn(120), deadline=None, suppress_health_check=[*HealthCheck])
@given(schema=schemas(), seed=st.integers(0, 2**32))
def test_every_answer_that_ends_satisfies_its_schema(
    compiler: LlguidanceCompiler, model: LoadedModel, schema: dict[str, Any], seed: int
):
    assert_satisfied(compiler, model, schema, seed)


@pytest.mark.slow
@settings(max_examples=drawn(120), deadline=None, suppress_health_check=[*HealthCheck])
@given(schema=conditional_schemas(), seed=st.integers(0, 2**32))
def test_every_answer_satisfies_what_a_schema_says_of_other_schemas(
    compiler: LlguidanceCompiler, model: LoadedModel, schema: dict[str, Any], seed: int
):
    try:
        assert_satisfied(compiler, model, schema, seed)
    except InvalidRequest:
        event("refused")
