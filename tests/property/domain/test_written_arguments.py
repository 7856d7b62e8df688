"""Random tools: whatever a grammar lets a family write is read by its parser as a call whose arguments fit.

A walk over the tokens that may come, drawn by a seed; it prefers what ends a value, so that it arrives.
"""

import json
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from domain.errors import InvalidRequest
from domain.output.families import FAMILIES
from domain.request.chat import ToolSpec
from tests.support.effort import drawn
from tests.support.mlx.writing_models import WritingModel, writing_models
from tests.support.text.json_schemas import schemas

MAX_TOKENS = 800
NAMES = st.one_of(st.sampled_from(["city", "days", "a.b", "x-y"]), st.text("abcé", min_size=1, max_size=4))
PARAMETRIC = [family.name for family in FAMILIES if any(one.parameters for one in family.writes)]
TYPICAL: dict[str, Any] = {
    "type": "object",
    "$defs": {"place": {"type": "object", "properties": {"lat": {"type": "number"}, "name": {"type": "string"}}}},
    "properties": {
        "city": {"type": "string", "minLength": 1, "maxLength": 20, "description": "where"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        "day": {"type": "string", "format": "date"},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d+$"},
        "days": {"type": ["integer", "null"]},
        "exact": {"type": "boolean"},
        "any": {"description": "whatever"},
        "at": {"$ref": "#/$defs/place"},
        "items": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {"type": "object", "properties": {"id": {"type": "integer"}, "kind": {"const": "x"}}},
        },
        "env": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], WritingModel]:
    return writing_models(tmp_path_factory.mktemp("models"))


@st.composite
def tools(draw: st.DrawFn) -> dict[str, Any]:
    properties = draw(st.dictionaries(NAMES, schemas(), max_size=3))
    definitions = {name: one for schema in properties.values() for name, one in schema.pop("$defs").items()}
    required = draw(st.lists(st.sampled_from(sorted(properties)), unique=True)) if properties else []
    return {"type": "object", "properties": properties, "required": required, "$defs": definitions}


def finite(number: str) -> float:
    """JSON has numbers of any size; one that no double holds becomes the largest that one does."""
    return min(max(float(number), -sys.float_info.max), sys.float_info.max)


def arrives(model: WritingModel, tool: ToolSpec, seed: int) -> bool:
    """Whether the walk came to an end; if so, at a call that is what it should be."""
    token_ids = model.walk(tool, random.Random(seed), MAX_TOKENS)
    if token_ids is None:
        return False
    told, text = model.read(token_ids, (tool,)), model.tokenizer.decode(token_ids)
    assert [name for _, name, _ in told.calls] == [tool.name], text
    assert told.text.strip() == "", text
    arguments = json.loads(told.calls[0][2], parse_float=finite)
    errors = list(jsonschema_rs.Draft202012Validator(dict(tool.parameters)).iter_errors(arguments))
    assert not errors, (text, arguments, errors)
    return True


@pytest.mark.parametrize("family", PARAMETRIC)
def test_a_typical_tool_is_held_to_its_schema(family: str, model_of: Callable[[str], WritingModel]) -> None:
    tool = ToolSpec("weather", "", TYPICAL, strict=True)
    assert sum(arrives(model_of(family), tool, seed) for seed in range(8)) > 4


@pytest.mark.parametrize("family", PARAMETRIC)
def test_what_is_written_is_read_as_arguments_that_fit(family: str, model_of: Callable[[str], WritingModel]) -> None:
    model, found = model_of(family), list[str]()

    @settings(
        max_examples=drawn(64), deadline=None, suppress_health_check=[*HealthCheck], derandomize=True, database=None
    )
    @given(parameters=tools(), seed=st.integers(0, 2**32))
    def hold(parameters: dict[str, Any], seed: int) -> None:
        try:
            found.append("ended" if arrives(model, ToolSpec("weather", "", parameters, strict=True), seed) else "cut")
        except InvalidRequest as error:
            found.append(error.message)

    hold()
    assert found.count("ended") > 2
    assert all(one in ("ended", "cut") or "the keyword" in one or "cannot be enforced" in one for one in found)


@pytest.mark.parametrize("family", PARAMETRIC)
def test_a_tool_that_lists_nothing_takes_anything(family: str, model_of: Callable[[str], WritingModel]) -> None:
    assert sum(arrives(model_of(family), ToolSpec("weather"), seed) for seed in range(8)) > 4


@pytest.mark.parametrize("family", PARAMETRIC)
@pytest.mark.parametrize("keyword", ["allOf", "patternProperties"])
def test_what_no_form_states_is_refused_by_name(
    family: str, keyword: str, model_of: Callable[[str], WritingModel]
) -> None:
    inner: dict[str, Any] = {"allOf": [{}, {}]} if keyword == "allOf" else {"patternProperties": {"^x": {}}}
    tool = ToolSpec("weather", "", {"type": "object", "properties": {}, **inner}, strict=True)
    with pytest.raises(InvalidRequest, match=keyword) as error:
        model_of(family).grammar(tool)
    assert error.value.param == "tools[weather]"


@pytest.mark.parametrize("family", ["gemma4", "qwen_xml"])
def test_a_schema_that_costs_too_much_is_refused(family: str, model_of: Callable[[str], WritingModel]) -> None:
    chain = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}]} for at in range(1_500)}
    chain["d1500"] = {"type": "string", "description": "x" * 2_000}
    properties = {f"p{at}": {"$ref": "#/$defs/d0"} for at in range(30)}
    free = ToolSpec("weather", "", {"type": "object", "$defs": chain, "properties": properties})
    assert model_of(family).grammar(free)
    with pytest.raises(InvalidRequest):
        model_of(family).grammar(replace(free, strict=True))
