"""Chat templates: what is rendered, what is adjusted for whom, and how a refusal reads."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from application.ports.tokenizer import PromptTooLong, TemplateFeatures, Tokenizer
from domain.errors import TemplateFailed
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from domain.request.request import ChatPrompt
from tests.support.mlx.tiny_tokenizers import CHATML, byte_level, load_folder, write_folder
from tests.support.text import templates

_BYTES = byte_level()

Load = Callable[..., Tokenizer]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def with_template(template: str | None, **config: object) -> Tokenizer:
        return load_folder(write_folder(tmp_path / "model", _BYTES, template, **config))

    return with_template


def _system(text: str) -> ChatMessage:
    return ChatMessage(Role.SYSTEM, text)


def _user(text: str) -> ChatMessage:
    return ChatMessage(Role.USER, text)


def _assistant(text: str) -> ChatMessage:
    return ChatMessage(Role.ASSISTANT, text)


_CALL = ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("call_1", "add", '{"a": 1, "b": [2]}'),))
_RESULT = ChatMessage(Role.TOOL, "3", tool_call_id="call_1")


def _text(tokenizer: Tokenizer, *messages: ChatMessage, tools: tuple[ToolSpec, ...] = (), **kwargs: object) -> str:
    return tokenizer.decode(tokenizer.render(ChatPrompt(messages, tools, kwargs)).token_ids)  # type: ignore[arg-type]


def test_messages_are_rendered_with_the_generation_prompt(load: Load) -> None:
    text = _text(load(templates.SYSTEM_FIRST), _system("Be brief."), _user("Hi"))
    assert text == ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize("between", [(), (_user("Hello"), _assistant("Hi"))])
def test_a_template_without_a_system_role_has_the_system_prompt_in_the_user_s_first_message(
    load: Load, between: tuple[ChatMessage, ...]
) -> None:
    tokenizer = load(templates.REFUSES_SYSTEM)
    first, *others = [*between, _user("Who?")]
    expected = _text(tokenizer, replace(first, content=f"Be brief.\n\n{first.content}"), *others)
    assert _text(tokenizer, _system("Be brief."), first, *others) == expected
    assert "no system role" in tokenizer.note
    assert "no system role" not in load(CHATML).note


def test_a_message_that_is_refused_late_is_named_by_its_place(load: Load) -> None:
    messages = [_user("a"), _assistant("b")] * 10
    with pytest.raises(TemplateFailed, match=r"messages\[13\] \(role tool; .*\.\.\..*no tools here"):
        _text(load(templates.NO_TOOLS), *messages[:13], _RESULT, *messages[13:])


_REMINDER = "<system-reminder>\nlate\n</system-reminder>"


@pytest.mark.parametrize("name", ["SYSTEM_FIRST", "HOISTS_SYSTEM", "FIRST_SYSTEM_ONLY"])
def test_a_late_system_message_stays_in_its_place_as_a_users(load: Load, name: str) -> None:
    text = _text(load(getattr(templates, name)), _system("s"), _user("a"), _assistant("b"), _system("late"), _user("c"))
    assert text == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        f"<|im_start|>user\n{_REMINDER}<|im_end|>\n<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_late_system_message_joins_the_users_where_roles_must_alternate(load: Load) -> None:
    text = _text(load(templates.ALTERNATES), _system("s"), _user("a"), _system("late"), _assistant("b"), _user("c"))
    assert f"<|im_start|>user\na\n\n{_REMINDER}<|im_end|>\n<|im_start|>assistant\nb<|im_end|>" in text


def test_a_template_that_takes_late_system_messages_gets_them(load: Load) -> None:
    text = _text(load(CHATML), _user("a"), _system("late"), _system("later"), _user("c"))
    assert "<|im_start|>system\nlate<|im_end|>\n<|im_start|>system\nlater<|im_end|>\n<|im_start|>user\nc" in text


def test_a_second_instruction_that_a_template_would_drop_is_joined_to_the_first(load: Load) -> None:
    developer = ChatMessage(Role.DEVELOPER, "skills")
    for first in (_system("base"), ChatMessage(Role.DEVELOPER, "base")):
        text = _text(load(templates.FIRST_SYSTEM_ONLY), first, developer, _user("a"))
        assert "\nbase\n\nskills<|im_end|>\n<|im_start|>user\na<|im_end|>" in text


def test_what_was_rendered_stays_the_beginning_when_a_reminder_is_added(load: Load) -> None:
    tokenizer = load(templates.HOISTS_SYSTEM)
    turns = [_system("s"), _user("a"), _system("late"), _assistant("b")]
    shorter, longer = _text(tokenizer, *turns, _user("c")), _text(tokenizer, *turns, _user("c"), _system("again"))
    assert longer.startswith(shorter.removesuffix("<|im_start|>assistant\n"))


def test_a_failed_tool_call_says_so(load: Load) -> None:
    failed = ChatMessage(Role.TOOL, "no such file", tool_call_id="call_1", is_error=True)
    assert "tool:add:::Error: no such file|" in _text(load(templates.SHOWS_FIELDS), _user("q"), _CALL, failed)


def test_runs_of_one_role_are_merged_only_where_they_are_refused(load: Load) -> None:
    messages = (_system("s"), _user("one"), _user("two"), _assistant("x"), _assistant("y"), _user("three"))
    assert "<|im_start|>user\none\n\ntwo<|im_end|>\n<|im_start|>assistant\nx\n\ny<|im_end|>" in _text(
        load(templates.ALTERNATES), *messages
    )
    assert "<|im_start|>user\none<|im_end|>\n<|im_start|>user\ntwo<|im_end|>" in _text(
        load(templates.SYSTEM_FIRST), *messages
    )


def test_what_merging_cannot_mend_is_refused_as_given(load: Load) -> None:
    with pytest.raises(TemplateFailed, match=r"messages\[0\] \(role assistant.*must alternate"):
        _text(load(templates.ALTERNATES), _assistant("x"), _assistant("y"), _user("z"))


def test_developer_becomes_system_unless_the_template_knows_it(load: Load) -> None:
    messages = (ChatMessage(Role.DEVELOPER, "d"), _user("u"))
    assert _text(load(templates.SYSTEM_FIRST), *messages).startswith("<|im_start|>system\nd<|im_end|>")
    assert _text(load(templates.KNOWS_DEVELOPER), *messages).startswith("<|im_start|>developer\nd<|im_end|>")


def test_system_and_developer_together_are_merged_for_a_template_with_one_system_message(load: Load) -> None:
    text = _text(load(templates.SYSTEM_FIRST), _system("s"), ChatMessage(Role.DEVELOPER, "d"), _user("u"))
    assert text.startswith("<|im_start|>system\ns\n\nd<|im_end|>\n<|im_start|>user")


def test_reasoning_is_handed_over_and_the_template_decides(load: Load) -> None:
    tokenizer = load(templates.DROPS_REASONING)
    thought = ChatMessage(Role.ASSISTANT, "b", reasoning="because")
    assert "<think>\nbecause\n</think>" in _text(tokenizer, _user("a"), thought)
    assert "because" not in _text(tokenizer, _user("a"), thought, _user("c"))


@pytest.mark.parametrize("content", ["Once upon ", "  x", "<think>\nSo", "a {{ b }} <|im_end|> 'c'", ""])
@pytest.mark.parametrize("template", [templates.DROPS_REASONING, templates.WANTS_PARTS])
def test_a_last_message_that_is_continued_is_left_open(load: Load, template: str, content: str) -> None:
    tokenizer = load(template)
    prompt = ChatPrompt((_user("Hi"), _assistant(content)), continues=True)
    text = tokenizer.decode(tokenizer.render(prompt).token_ids)
    assert text.endswith("<|im_start|>assistant\n" + content)
    assert text.count("<|im_start|>assistant") == 1


def test_white_space_that_a_template_trims_is_kept_where_the_answer_goes_on(load: Load) -> None:
    tokenizer = load(templates.ALTERNATES)
    prompt = ChatPrompt((_user("Hi"), _assistant("Once \n")), continues=True)
    assert tokenizer.decode(tokenizer.render(prompt).token_ids).endswith("assistant\nOnce \n")


def test_a_template_that_does_not_show_what_is_to_be_continued_is_reported(load: Load) -> None:
    tokenizer = load("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(TemplateFailed, match="cannot be continued") as failed:
        tokenizer.render(ChatPrompt((_user("Hi"), _assistant("x")), continues=True))
    assert failed.value.param == "messages[1]"


@pytest.mark.parametrize(
    ("template", "features"),
    [
        (CHATML, TemplateFeatures(tools=False, reasoning=False, late_system=True)),
        (templates.SHOWS_FIELDS, TemplateFeatures(tools=True, reasoning=True, late_system=True)),
        (templates.SYSTEM_FIRST, TemplateFeatures(tools=False, reasoning=False, late_system=False)),
        (templates.HOISTS_SYSTEM, TemplateFeatures(tools=False, reasoning=False, late_system=False)),
        (None, None),
    ],
    ids=["chatml", "all", "refuses", "hoists", "none"],
)
def test_what_a_template_shows_is_found(load: Load, template: str | None, features: TemplateFeatures | None) -> None:
    assert load(template).template_features == features


def test_template_arguments_reach_the_template(load: Load) -> None:
    tokenizer = load(templates.DROPS_REASONING)
    assert _text(tokenizer, _user("a"), enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    assert _text(tokenizer, _user("a")).endswith("assistant\n")


@pytest.mark.parametrize(
    "name",
    ["messages", "tools", "tokenize", "no-name", "bos_token", "range", "max_chars", "self"],
)
def test_arguments_that_the_server_or_the_tokenizer_sets_are_refused(load: Load, name: str) -> None:
    with pytest.raises(TemplateFailed, match=f"{name} cannot be set") as failed:
        load(templates.SHOWS_FIELDS).render(ChatPrompt((_user("a"),), (), {name: "x"}))
    assert failed.value.param == "chat_template_kwargs"


@pytest.mark.parametrize(
    ("value", "num_messages"),
    [("x" * 70_000, 1), ([[]] * 40_000, 1), ({"k" * 40_000: "v" * 30_000}, 1), ("x" * 600, 150_000)],
    ids=["text", "nodes", "keys", "messages"],
)
def test_arguments_have_a_size(load: Load, value: object, num_messages: int) -> None:
    with pytest.raises(TemplateFailed, match="chat_template_kwargs is too large") as failed:
        load(templates.SHOWS_FIELDS).render(ChatPrompt((_user("a"),) * num_messages, (), {"tone": value}))  # type: ignore[dict-item]
    assert failed.value.param == "chat_template_kwargs"


def test_a_template_writes_no_more_than_the_context_can_hold(load: Load) -> None:
    tokenizer = load("{% for m in messages %}{{ tone }}{{ m.content }}{% endfor %}")
    prompt = ChatPrompt((_user("a"),) * 1000, (), {"tone": "x" * 60_000})
    with pytest.raises(PromptTooLong) as refused:
        tokenizer.render(prompt, max_tokens=1_000)
    assert not refused.value.is_exact
    assert 1_000 < refused.value.num_tokens < 60_000


def test_tools_and_calls_have_the_shape_templates_expect(load: Load) -> None:
    tool = ToolSpec("add", "Add numbers", {"type": "object", "properties": {"a": {"type": "integer"}}})
    text = _text(load(templates.SHOWS_FIELDS), _user("q"), _CALL, _RESULT, tools=(tool,), tone="calm")
    tools, _, call, result, tone = text.split("|")
    function = {"name": "add", "description": "Add numbers", "parameters": dict(tool.parameters)}
    assert json.loads(tools) == [{"type": "function", "function": function}]
    calls = json.loads(call.removeprefix("assistant:::").removesuffix(":"))
    arguments = {"a": 1, "b": [2]}
    assert calls == [{"id": "call_1", "type": "function", "function": {"name": "add", "arguments": arguments}}]
    assert result == "tool:add:::3"
    assert tone == "calm"


def test_arguments_that_are_no_json_stay_text(load: Load) -> None:
    broken = ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("c", "add", "{a: 1"),))
    assert '"arguments": "{a: 1"' in _text(load(templates.SHOWS_FIELDS), _user("q"), broken)


def test_half_a_character_in_arguments_is_replaced(load: Load) -> None:
    cut = ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("c", "add", r'{"a": "x\ud83d"}'),))
    assert '{"a": "x�"}' in _text(load(templates.SHOWS_FIELDS), _user("q"), cut)
    many = ChatMessage(Role.ASSISTANT, tool_calls=(ToolCall("c", "add", '"' + r"\ud83d" * 70_000 + '"'),))
    assert _text(load(templates.SHOWS_FIELDS), _user("q"), many).encode()


def test_a_template_that_writes_arguments_as_text_gets_text(load: Load) -> None:
    assert 'add {"a": 1, "b": [2]}' in _text(load(templates.WANTS_TEXT_ARGUMENTS), _user("q"), _CALL, _RESULT)


def test_call_ids_are_shortened_alike_in_call_and_result_where_long_ones_are_refused(load: Load) -> None:
    text = _text(load(templates.WANTS_SHORT_IDS), _user("q"), _CALL, _RESULT)
    question, made, answered = text.split("[")
    assert question == "q"
    assert made == answered.removesuffix("3")
    assert made.removesuffix("]").isalnum()
    assert len(made) == 10


def test_a_template_for_lists_of_parts_does_not_lose_plain_content(load: Load) -> None:
    assert "<|im_start|>user\nWhere is it?<|im_end|>" in _text(load(templates.WANTS_PARTS), _user("Where is it?"))


def test_an_error_inside_the_template_is_reported_with_its_kind(load: Load) -> None:
    with pytest.raises(TemplateFailed, match=r"messages\[0\] \(role user.*UndefinedError"):
        _text(load("{{ messages[0].nothing.at_all }}"), _user("a"))


def test_the_template_may_stand_in_the_tokenizers_configuration(load: Load) -> None:
    assert _text(load(None, chat_template="<{{ messages[0].content }}>"), _user("a")) == "<a>"


def test_the_template_may_stand_in_the_file_of_older_vision_models(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, _BYTES, None)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "({{ messages[0].content }})"}))
    assert _text(load_folder(folder), _user("a")) == "(a)"


def test_a_template_of_its_own_for_tools_is_used_with_tools(load: Load) -> None:
    named = [
        {"name": "default", "template": "plain"},
        {"name": "tool_use", "template": "with {{ tools[0].function.name }}"},
    ]
    tokenizer = load(None, chat_template=named)
    assert _text(tokenizer, _user("a")) == "plain"
    assert _text(tokenizer, _user("a"), tools=(ToolSpec("add"),)) == "with add"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__.os.getpid() }}",
        "{% for i in range(100001) %}{% endfor %}",
    ],
)
def test_a_template_is_rendered_in_a_sandbox(load: Load, template: str) -> None:
    with pytest.raises(TemplateFailed):
        _text(load(template), _user("Hi"))
