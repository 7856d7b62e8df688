"""Parsing of each family's output: transcripts, malformed or unclosed calls, markup in text, and the chosen format."""

import json
from pathlib import Path

import pytest

from adapters.tokenizers.loader import HfTokenizerLoader
from application.settings import ModelSettings
from domain.errors import InvalidRequest
from domain.ids import ModelId
from domain.models.model_card import ModelSource
from domain.output.families import FAMILIES
from domain.output.output_format import choose_format
from domain.request.chat import ToolSpec
from domain.request.stream import ToolCallDelta
from tests.support.http.replay.transcripts import TOOLS, TRANSCRIPTS, Told, Transcript
from tests.support.mlx.tiny_tokenizers import byte_level, write_folder
from tests.support.text.output_parsers import marked, model_of, numbered_ids, parsed, text_parser, told_by

ID = "call_000000001"


def _told(name: str, answer: str, **options: object) -> Told:
    parser, _ = text_parser(TRANSCRIPTS[name], **options)  # type: ignore[arg-type]
    return parsed(parser, marked(answer, TRANSCRIPTS[name]))


@pytest.mark.parametrize(
    "answer",
    [
        "Write <tool_call> before a call.",
        "<tool_call>",
        "<tool_call>\n{",
        '<tool_call>\n{"name": "now"',
        '<tool_call>{"name": "now", "arg',
        '<tool_call>{"arguments": {"a": 1}}</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        '<tool_call>{"name": "a b", "arguments": {}}</tool_call>',
        "<tool_call>[]</tool_call>",
        '<tool_call>{"name": "get_weather", "city": "Bern"}</tool_call>',
        "a </tool_call> b",
        "  spaces are kept \n",
    ],
)
def test_what_is_no_call_is_text_to_the_letter(answer: str) -> None:
    assert _told("hermes", answer) == Told(text=answer)


@pytest.mark.parametrize(
    ("name", "answer", "text"),
    [
        ("qwen3_coder", "Use <function=now> so.", None),
        ("qwen3_coder", "<tool_call>\n<function=now", None),
        ("glm", "<tool_call>now<arg", None),
        ("lfm2", "<|tool_call_start|>[now(3)]<|tool_call_end|>", "<|tool_call_start|>[now(3)]"),
        ("llama3", "[1] says so, and [now(x)] too", None),
        ("llama3", '{"name": "unknown", "parameters": {}}', None),
        ("llama3", '{"city": "Bern"}', None),
        ("json", '{"name": "Bern", "size": 3}', None),
        ("kimi_k2", "<|tool_calls_section_begin|>hello", None),
        ("kimi_k3", "<|open|>tools<|sep|>none", None),
        ("harmony_final", "Hello there.", None),
        ("gemma4", "<|tool_call>call:now{<tool_call|>", "<|tool_call>call:now{"),
    ],
)
def test_no_calls_of_other_families(name: str, answer: str, text: str | None) -> None:
    """Special tokens that close nothing are dropped, as a detokenizer drops them."""
    assert _told(name, answer) == Told(text=answer if text is None else text)


def test_a_call_after_one_that_is_none() -> None:
    found = _told("hermes", '<tool_call>oops\n<tool_call>{"name": "now", "arguments": {}}</tool_call>')
    assert found == Told(text="<tool_call>oops", calls=((ID, "now", "{}"),))


@pytest.mark.parametrize(
    ("ending", "arguments"),
    [
        ('{"city": "Be', '{"city": "Be'),
        ('{"city": "Bern"}', '{"city": "Bern"}'),
        ('{"city": "Bern"}}', '{"city": "Bern"}'),
        ('{"city": "Bern"}</tool_call>', '{"city": "Bern"}'),
        ('{"city": "Bern"}}}}</tool_call>', '{"city": "Bern"}'),
        ('{"city": oops}}</tool_call>', '{"city": oops}}'),
        ("{'city': 'Bern'}}</tool_call>", "{'city': 'Bern'}}"),
        ('"{\\"city\\": \\"Bern\\"}"}</tool_call>', '{"city": "Bern"}'),
        ("null}</tool_call>", "{}"),
    ],
)
def test_what_follows_a_calls_name_is_its_arguments(ending: str, arguments: str) -> None:
    found = _told("hermes", '<tool_call>{"name": "get_weather", "arguments": ' + ending)
    assert found == Told(calls=((ID, "get_weather", arguments),))


def test_arguments_before_the_name_and_other_keys() -> None:
    call = '{"type": "function", "id": "abc", "arguments": {"a": 1}, "name": "now"}'
    assert _told("hermes", f"<tool_call>{call}</tool_call>") == Told(calls=(("abc", "now", '{"a": 1}'),))
    nested = '{"id": "abc", "type": "function", "function": {"name": "now", "arguments": {"a": 1}}}'
    assert _told("hermes", f"<tool_call>{nested}</tool_call>") == Told(calls=(("abc", "now", '{"a": 1}'),))


def test_a_missing_close_ends_with_the_next_call() -> None:
    one = '<tool_call>{"name": "now", "arguments": {}}\n'
    assert [name for _, name, _ in _told("hermes", one * 3).calls] == ["now"] * 3


def test_text_between_and_after_calls() -> None:
    call = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    found = _told("hermes", f"Before.\n\n{call}\nBetween.\n{call}\n\nAfter. ")
    assert found.text == "Before.Between.After. "
    assert len(found.calls) == 2


def test_arguments_stream_as_they_are_written() -> None:
    for name, opening in (
        ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "B'),
        ("qwen3_coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nB"),
        ("glm", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>B"),
        ("lfm2", '<|tool_call_start|>[get_weather(city="B'),
        ("harmony_call", '<|channel|>commentary to=functions.get_weather<|message|>{"city": "B'),
    ):
        parser, _ = text_parser(TRANSCRIPTS[name])
        parser.feed(marked(opening, TRANSCRIPTS[name]))
        assert [delta.arguments for delta in parser.feed("er")] == ["er"], name  # type: ignore[union-attr]


def test_values_between_tags_take_the_types_of_the_schema() -> None:
    values = {"city": "12", "days": "3.0", "units": "c", "places": '["a"]', "exact": "True", "other": "x"}
    answer = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    found = _told("qwen3_coder", f"<tool_call>\n<function=get_weather>\n{answer}</function>\n</tool_call>")
    assert json.loads(found.calls[0][2]) == {
        "city": "12", "days": 3.0, "units": "c", "places": ["a"], "exact": True, "other": "x"
    }  # fmt: skip


@pytest.mark.parametrize(
    "value", ["</parameter> <b>", "<tool_call>\n{}", "a\n\n", '"\\n"', "<function=now>", "é\u2028"]
)
def test_markup_inside_a_value_between_tags(value: str) -> None:
    answer = f"<tool_call>\n<function=get_weather>\n<parameter=city>\n{value}\n</parameter>\n</function>\n</tool_call>"
    assert json.loads(_told("qwen3_coder", answer).calls[0][2]) == {"city": value}


def test_arguments_as_one_object_between_tags() -> None:
    body = '<|open|>json type="object"<|sep|>{"a": 1}<|close|>json<|sep|>'
    call = f'<|open|>call tool="now" index="1"<|sep|>{body}<|close|>call<|sep|>'
    found = _told("kimi_k3", f"<|open|>tools<|sep|>{call}{call}<|close|>tools<|sep|>")
    assert [(name, arguments) for _, name, arguments in found.calls] == [("now", '{"a": 1}')] * 2


def test_a_call_between_tags_that_is_cut_off_stays_open() -> None:
    answer = "<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n1"
    assert _told("qwen3_coder", answer).calls == ((ID, "get_weather", '{"city": "Bern", "days": 1'),)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("'it\\'s'", "it's"),
        ('"a\\nb\\u00e9\\x41"', "a\nbéA"),
        ('"""a "b" c"""', 'a "b" c'),
        ("[1, -2.5e3, None, {'a': (True, false)}]", [1, -2500.0, None, {"a": [True, False]}]),
        ('"\\ud83d\\ude00"', "😀"),
        ('"\\q"', "\\q"),
        ("007", "007"),
    ],
)
def test_literals(written: str, value: object) -> None:
    found = _told("lfm2", f"<|tool_call_start|>[get_weather(city={written})]<|tool_call_end|>")
    assert json.loads(found.calls[0][2]) == {"city": value}


def test_ids_are_unique_in_the_conversation_and_in_the_familys_form() -> None:
    kimi = TRANSCRIPTS["kimi_k2"]
    parser, answer = text_parser(kimi, taken_ids=("functions.get_weather:0",))
    assert [id for id, _, _ in parsed(parser, answer).calls] == ["functions.get_weather:1", "functions.now:1"]
    parser, answer = text_parser(TRANSCRIPTS["mistral"], taken_ids=(numbered_ids()()[-9:],))
    assert [id for id, _, _ in parsed(parser, answer).calls] == ["000000002", "000000003"]
    parser, answer = text_parser(TRANSCRIPTS["magistral"])
    assert [id for id, _, _ in parsed(parser, answer).calls] == ["a1B2c3D4e"]


@pytest.mark.parametrize(
    ("name", "taken", "is_own"), [("hermes", "", True), ("magistral", "", False), ("magistral", "a1B2c3D4e", True)]
)
def test_an_id_that_the_model_wrote_is_not_the_servers_own(name: str, taken: str, is_own: bool) -> None:
    parser, answer = text_parser(TRANSCRIPTS[name], taken_ids=(taken,))
    first = next(one for one in (*parser.feed(answer), *parser.finish()) if isinstance(one, ToolCallDelta))
    assert first.is_own_id is is_own


def test_a_marker_that_is_a_special_token_is_not_made_by_its_spelling() -> None:
    case = TRANSCRIPTS["mistral"]
    parser, _ = text_parser(case)
    assert parsed(parser, case.answer) == Told(text=case.answer)


def test_reasoning_that_never_ends_and_tags_that_are_talked_about() -> None:
    assert _told("qwq", "Hm, <tool_call> \n") == Told(reasoning="Hm, <tool_call> \n")
    assert _told("qwen3", "The tag <think> opens it.") == Told(text="The tag <think> opens it.")
    assert _told("qwq", "<think>\nHm.</think>Yes.") == Told("Hm.", "Yes.")
    assert _told("qwen3", "<think>\n\n</think>\n\nYes.") == Told(text="Yes.")


def test_unknown_tools_are_calls_where_they_are_marked() -> None:
    found = _told("hermes", '<tool_call>{"name": "rm", "arguments": {}}</tool_call>', tools=(*TOOLS, ToolSpec("x")))
    assert found.calls == ((ID, "rm", "{}"),)


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
def test_without_tools_what_a_call_would_be_is_text(case: Transcript) -> None:
    parser, answer = text_parser(case, tools=())
    found = parsed(parser, answer)
    assert found.calls == ()
    assert found.reasoning == case.reasoning
    for _, arguments in case.calls:
        assert all(str(value) in found.text for value in arguments.values())


def test_every_family_has_a_transcript() -> None:
    assert {case.family for case in TRANSCRIPTS.values()} == {family.name for family in FAMILIES}


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
