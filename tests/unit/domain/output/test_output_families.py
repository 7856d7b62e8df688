"""What each family writes is understood, from the tokens of a tokenizer that has the family's markers."""

import json
from pathlib import Path

import pytest

from domain.output.families import FAMILIES
from domain.output.family import Family
from tests.support.http.transcripts import TRANSCRIPTS, Told, Transcript
from tests.support.mlx.output_parsers import model_of, parsed, text_parser, told_by

CASES = [pytest.param(case, id=name) for name, case in TRANSCRIPTS.items()]


def _check(case: Transcript, found: Told) -> None:
    assert found.reasoning == case.reasoning
    assert found.text == case.text
    assert [(name, json.loads(arguments)) for _, name, arguments in found.calls] == list(case.calls)


@pytest.mark.parametrize("case", CASES)
def test_tokens_are_understood_by_what_template_and_tokenizer_show(case: Transcript, tmp_path: Path) -> None:
    tokenizer = model_of(case, tmp_path / "model")
    assert tokenizer.output_format.startswith(case.family + " (")
    _check(case, told_by(tokenizer, case))


@pytest.mark.parametrize("case", CASES)
def test_text_is_understood_a_character_at_a_time(case: Transcript) -> None:
    parser, answer = text_parser(case)
    _check(case, parsed(parser, answer))


@pytest.mark.parametrize("case", CASES)
def test_without_tools_what_a_call_would_be_is_text(case: Transcript) -> None:
    parser, answer = text_parser(case, tools=())
    found = parsed(parser, answer)
    assert found.calls == ()
    assert found.reasoning == case.reasoning
    for _, arguments in case.calls:
        assert all(str(value) in found.text for value in arguments.values())


def test_every_family_has_a_transcript() -> None:
    assert {case.family for case in TRANSCRIPTS.values()} == {family.name for family in FAMILIES}


@pytest.mark.parametrize("family", [pytest.param(one, id=one.name) for one in FAMILIES])
def test_each_opening_of_a_family_leads_to_one_section(family: Family) -> None:
    opened = [section.open for section in family.sections if section.open]
    assert len(opened) == len(set(opened))
