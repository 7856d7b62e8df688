"""Calls that are malformed, unclosed or only talked about, and markup inside of text and arguments."""

import json

import pytest

from domain.request.chat import ToolSpec
from tests.support.http.transcripts import TOOLS, TRANSCRIPTS, Told
from tests.support.mlx.output_parsers import marked, numbered_ids, parsed, text_parser

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
