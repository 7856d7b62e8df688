"""Which parser a model gets: by its template, its tokens, or the user's word."""

from pathlib import Path

import pytest

from adapters.tokenizers.loader import PARSER_NAMES, HfTokenizerLoader
from application.settings import ModelSettings
from domain.errors import InvalidRequest
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.output.output_format import choose_format, family_named
from tests.support.mlx.tiny_tokenizers import byte_level, write_folder


def test_a_template_tells_more_than_tokens() -> None:
    """R1's distillations keep the tokens of Llama and have the template of DeepSeek."""
    found = choose_format("{{ '<｜tool▁calls▁begin｜>' }}", ("<|python_tag|>", "<think>", "</think>"))
    assert found.family.name == "deepseek"
    assert str(found) == (
        "deepseek (<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON; from its chat template), reasoning: <think>...</think>"
    )


def test_tokens_tell_where_the_template_does_not() -> None:
    found = choose_format("", ("<|tool_call_start|>", "<|tool_call_end|>"))
    assert (found.family.name, found.found_in) == ("lfm2", "from its added tokens")
    assert str(found).endswith("reasoning: none")


def test_bare_json_is_the_last_resort() -> None:
    assert choose_format("", ()).family.name == "json"


def test_an_unknown_parser_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest, match=r"unknown parser, 'qwen9'; use one of deepseek, .*hermes.*qwen_xml"):
        HfTokenizerLoader({"model": "qwen9"})


def _model(folder: Path, **config: str) -> ModelSource:
    template = "<tool_call>{% for message in messages %}{{ message.content }}{% endfor %}"
    return ModelSource(ModelId("tiny"), str(write_folder(folder, byte_level(), template, **config)))


def test_the_users_word_counts_most_for_the_model_it_names(tmp_path: Path) -> None:
    source = _model(tmp_path / "a", tool_parser_type="qwen3_coder")
    assert HfTokenizerLoader({"tiny": "glm"}).load(source).output_format.startswith("glm (")
    assert HfTokenizerLoader({"other": "glm"}).load(source).output_format.startswith("qwen_xml (")


def test_the_setting_names_families_by_model() -> None:
    settings = ModelSettings(parsers=("org/name=glm", "/models/a=b=hermes"))
    assert settings.parser_of == {"org/name": "glm", "/models/a=b": "hermes"}


def test_a_parser_type_that_nobody_knows_is_passed_over(tmp_path: Path) -> None:
    source = _model(tmp_path / "a", tool_parser_type="of_tomorrow")
    assert HfTokenizerLoader().load(source).output_format.startswith("hermes (")


def test_every_name_of_mlx_lm_leads_to_a_family() -> None:
    assert all(family_named(name) for name in PARSER_NAMES.values())
