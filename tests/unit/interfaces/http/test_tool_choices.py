"""What each dialect's words for tool_choice and for an answer's form mean."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from domain.errors import ContextOverflow, InvalidRequest
from domain.request.chat import CallMode, TextGrammar, ToolCall, ToolChoice, named_tool
from domain.request.grammar import Grammar, GrammarKind
from domain.request.request import ChatPrompt
from interfaces.http.anthropic import messages as anthropic
from interfaces.http.anthropic.messages import MessagesRequest
from interfaces.http.errors import renamed
from interfaces.http.fields.grammar_fields import form_grammar
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.openai.chat_request import ChatCompletionRequest, Message, chat_messages, chat_prompt
from interfaces.http.responses import request as responses
from interfaces.http.responses.request import ResponsesRequest

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
HELLO = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatPrompt:
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("f", "g")]
    return chat_prompt(msgspec.convert({"messages": HELLO, "tools": tools, **fields}, ChatCompletionRequest))


def message(**fields: Any) -> ChatPrompt:
    tools = [{"name": name, "input_schema": SCHEMA} for name in ("f", "g")]
    return anthropic.chat_prompt(msgspec.convert({"messages": HELLO, "tools": tools, **fields}, MessagesRequest))


def response(**fields: Any) -> ChatPrompt:
    tools = [
        {"type": "function", "name": "f", "parameters": SCHEMA},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]},
        {"type": "custom", "name": "c"},
    ]
    return responses.chat_prompt(msgspec.convert({"input": "hi", "tools": tools, **fields}, ResponsesRequest))


ANY, NONE, REQUIRED = ToolChoice(), ToolChoice(CallMode.NONE), ToolChoice(CallMode.REQUIRED)
CHOICES: list[tuple[str, Callable[..., ChatPrompt], dict[str, Any], ToolChoice]] = [
    ("chat", chat, {}, ANY),
    ("chat", chat, {"tool_choice": "auto"}, ANY),
    ("chat", chat, {"tool_choice": "none"}, NONE),
    ("chat", chat, {"tool_choice": "required"}, REQUIRED),
    ("chat", chat, {"tool_choice": {"type": "function", "function": {"name": "g"}}}, named_tool("g")),
    ("chat", chat, {"parallel_tool_calls": False}, ToolChoice(one_call=True)),
    (
        "chat",
        chat,
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "g"}}]},
            }
        },
        ToolChoice(CallMode.REQUIRED, ("g",)),
    ),
    ("messages", message, {"tool_choice": {"type": "auto"}}, ANY),
    ("messages", message, {"tool_choice": {"type": "none"}}, NONE),
    ("messages", message, {"tool_choice": {"type": "any"}}, REQUIRED),
    ("messages", message, {"tool_choice": {"type": "tool", "name": "g"}}, named_tool("g")),
    (
        "messages",
        message,
        {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}},
        ToolChoice(CallMode.REQUIRED, one_call=True),
    ),
    ("responses", response, {"tool_choice": "none"}, NONE),
    ("responses", response, {"tool_choice": "required", "parallel_tool_calls": True}, REQUIRED),
    ("responses", response, {"tool_choice": {"type": "function", "name": "g"}}, named_tool("n__g")),
    ("responses", response, {"tool_choice": {"type": "custom", "name": "c"}}, named_tool("c")),
    (
        "responses",
        response,
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]}},
        ToolChoice(names=("f",)),
    ),
]


@pytest.mark.parametrize(
    ("prompt_of", "fields", "choice"),
    [pytest.param(of, fields, choice, id=f"{name}-{fields}") for name, of, fields, choice in CHOICES],
)
def test_a_choice_is_read_and_the_prompt_stays(
    prompt_of: Callable[..., ChatPrompt], fields: dict[str, Any], choice: ToolChoice
) -> None:
    prompt = prompt_of(**fields)
    assert prompt.tool_choice == choice
    assert prompt.tools == prompt_of().tools
    assert prompt.callable_tools == (() if choice.mode is CallMode.NONE else prompt.tools)


@pytest.mark.parametrize(
    ("prompt_of", "fields", "param"),
    [
        pytest.param(chat, {"tool_choice": "sometimes"}, "tool_choice", id="unknown"),
        pytest.param(chat, {"tool_choice": {"type": "function", "name": "h"}}, "tool_choice", id="nobody"),
        pytest.param(chat, {"tool_choice": {"type": "function"}}, "tool_choice", id="nameless"),
        pytest.param(chat, {"tool_choice": "required", "tools": []}, "tool_choice", id="no tools"),
        pytest.param(message, {"tool_choice": {"type": "required"}}, "tool_choice.type", id="not Anthropic's"),
        pytest.param(message, {"tool_choice": {"type": "tool"}}, "tool_choice.name", id="Anthropic's nameless"),
        pytest.param(response, {"tool_choice": {"type": "file_search"}}, "tool_choice", id="hosted"),
    ],
)
def test_a_choice_that_cannot_be_had_is_refused_by_name(
    prompt_of: Callable[..., ChatPrompt], fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequest) as error:
        prompt_of(**fields)
    assert error.value.param == param


def test_custom_tools_and_their_calls_are_the_same_in_chat_and_responses() -> None:
    text, grammar = {"name": "patch", "description": "Edit."}, {"syntax": "lark", "definition": "start: /.+/"}
    formats: list[tuple[dict[str, Any], dict[str, Any]]] = [({}, {}), ({"type": "text"}, {"type": "text"})]
    formats += [({"type": "grammar", "grammar": grammar}, {"type": "grammar", **grammar})]
    for of_chat, of_response in formats:
        ours = chat(tools=[{"type": "custom", "custom": {**text, "format": of_chat}}]).tools
        assert ours == response(tools=[{"type": "custom", **text, "format": of_response}]).tools
        assert ours[0].text_grammar == (TextGrammar("lark", "start: /.+/") if len(of_chat) == 2 else None)
    call = {"id": "c", "type": "custom", "custom": {"name": "patch", "input": 'a"b'}}
    messages = [*HELLO, {"role": "assistant", "tool_calls": [call]}]
    *_, last = chat_messages(msgspec.convert(messages, list[Message]))
    assert last.tool_calls == (ToolCall("c", "patch", '{"input":"a\\"b"}'),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "custom", "function": {"name": "f"}}]}, "tools[0].custom"),
        ({"tools": [{"custom": {"name": "f"}}]}, "tools[0].function"),
        (
            {"messages": [*HELLO, {"role": "assistant", "tool_calls": [{"type": "custom"}]}]},
            "messages[1].tool_calls[0].custom",
        ),
    ],
)
def test_a_tool_without_its_object_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest, match=re.escape(f"{param} is missing")) as error:
        body_decoder(ChatCompletionRequest)(msgspec.json.encode({"messages": HELLO, **fields}))
    assert error.value.param == param


def test_strict_is_read_in_every_dialect() -> None:
    function: dict[str, Any] = {"name": "f", "parameters": SCHEMA, "strict": True}
    assert chat(tools=[{"type": "function", "function": function}]).tools[0].strict
    assert message(tools=[{"name": "f", "input_schema": SCHEMA, "strict": True}]).tools[0].strict
    assert response(tools=[{"type": "function", **function}]).tools[0].strict
    assert not any(tool.strict for of in (chat, message, response) for tool in of().tools)


def test_the_form_of_an_answer_is_read_in_every_dialect() -> None:
    wanted = Grammar(
        GrammarKind.JSON_SCHEMA,
        '{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}',
    )
    format: dict[str, Any] = {"type": "json_schema", "schema": SCHEMA}
    of_message = msgspec.convert({"messages": HELLO, "output_config": {"format": format}}, MessagesRequest)
    of_response = msgspec.convert({"input": "hi", "text": {"format": {**format, "name": "x"}}}, ResponsesRequest)
    of_chat = {"messages": HELLO, "response_format": {"type": "json_schema", "json_schema": format | {"name": "x"}}}
    assert of_message.grammar == wanted
    assert form_grammar(of_response.format, responses.FORMAT) == wanted
    assert msgspec.convert(of_chat, ChatCompletionRequest).grammar == wanted


def test_empty_fields_ask_for_no_form() -> None:
    empty = {"messages": HELLO, "guided_regex": "", "guided_choice": [], "guided_grammar": "", "guided_json": None}
    assert msgspec.convert(empty, ChatCompletionRequest).grammar is None


def test_a_renamed_error_keeps_its_numbers() -> None:
    with pytest.raises(ContextOverflow) as error, renamed({"max_tokens": "max_output_tokens"}):
        raise ContextOverflow("max_tokens is 9", param="max_tokens", num_prompt=5, context_length=10)
    told = error.value
    assert (told.message, told.param) == ("max_output_tokens is 9", "max_output_tokens")
    assert str(told) == told.message
    assert (told.num_prompt, told.context_length) == (5, 10)
