"""What a body of /v1/responses becomes: the conversation, the tools and their names back, and what is refused."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from openai.types.responses.response_input_item_param import ResponseInputItemParam

from domain.errors import InvalidRequest
from domain.request.chat import ChatMessage, Role, TextGrammar, ToolCall, ToolSpec
from domain.request.file import File
from domain.request.media import Detail, Image
from domain.request.request import ChatPrompt
from interfaces.http.incoming.json_body import body_decoder
from interfaces.http.responses.items import ITEMS, LEFT_OUT
from interfaces.http.responses.request import ResponsesRequest, chat_prompt
from interfaces.http.responses.tools import WireTool
from tests.support.http.files import responses_file

decode = body_decoder(ResponsesRequest)
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}], "id": "msg_1"}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yes"}], "id": "m"}


def body_of(input: Any = "hi", **fields: Any) -> ResponsesRequest:
    return decode(msgspec.json.encode({"model": "m", "input": input, **fields}))


def prompt_of(*items: Any, **fields: Any) -> ChatPrompt:
    return chat_prompt(body_of(list(items) or "hi", **fields))


def refused(*items: Any, **fields: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        prompt_of(*items, **fields)
    return str(error.value.param)


def test_a_string_is_a_message_of_one_part_with_or_without_type_and_id() -> None:
    assert prompt_of() == prompt_of(HELLO) == prompt_of({"role": "user", "content": "hi"})
    assert prompt_of().messages == (ChatMessage(Role.USER, "hi"),)
    assert prompt_of(HELLO, prompt_cache_key="a", client_metadata={"x": 1}, store=False) == prompt_of(HELLO)


def test_every_role_stays_in_its_place_and_instructions_come_first() -> None:
    developer = {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "d"}]}
    found = prompt_of(developer, developer, HELLO, ANSWER, {**developer, "role": "system"}, HELLO, instructions="i")
    assert [(message.role, message.content) for message in found.messages] == [
        *((Role.SYSTEM, "i"), (Role.DEVELOPER, "d"), (Role.DEVELOPER, "d"), (Role.USER, "hi")),
        *((Role.ASSISTANT, "yes"), (Role.SYSTEM, "d"), (Role.USER, "hi")),
    ]


def test_the_items_of_one_answer_are_one_message() -> None:
    found = prompt_of(
        HELLO,
        {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
        ANSWER,
        {"type": "function_call", "call_id": "c1", "name": "exec", "arguments": '{ "cmd" : "ls"}', "id": "fc"},
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"type": "search"}},
        {"type": "function_call", "call_id": "c2", "name": "close", "namespace": "agents", "arguments": "{not json"},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "ok"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "So."}], "encrypted_content": None},
        {"type": "custom_tool_call", "call_id": "c3", "name": "apply_patch", "input": "*** é\n"},
        {"type": "custom_tool_call_output", "call_id": "c3", "output": "done"},
    ).messages
    calls = (ToolCall("c1", "exec", '{ "cmd" : "ls"}'), ToolCall("c2", "agents__close", "{not json"))
    patch = ToolCall("c3", "apply_patch", '{"input":"*** é\\n"}')
    assert found == (
        ChatMessage(Role.USER, "hi"),
        ChatMessage(Role.ASSISTANT, "yes", reasoning="Hm.", tool_calls=calls),
        ChatMessage(Role.TOOL, "3", tool_call_id="c1"),
        ChatMessage(Role.TOOL, "ok", tool_call_id="c2"),
        ChatMessage(Role.ASSISTANT, reasoning="So.", tool_calls=(patch,)),
        ChatMessage(Role.TOOL, "done", tool_call_id="c3"),
    )


def test_images_keep_their_places_among_texts_and_in_results_of_tools() -> None:
    part = {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "low"}
    words = {"type": "input_text", "text": "look"}
    [asked] = prompt_of({"role": "user", "content": [words, part, words, words]}).messages
    assert (asked.content, asked.images[0].at) == ("looklook\nlook", 4)
    assert asked.images[0] == Image(b"\0\0\0", Detail.LOW)
    assert asked.images[0].field == "input[0].content[1].image_url"
    output = {"type": "function_call_output", "call_id": "c", "output": [words, part]}
    assert prompt_of(HELLO, output).messages[1].images == asked.images


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_media_are_refused_where_nothing_is_lost_and_left_out_where_a_session_would_end(kind: str) -> None:
    part = {"type": kind, "file_id": "file_1"}
    shown = {"role": "user", "content": [{"type": "input_text", "text": "look"}, part]}
    assert refused(shown) == "input[0].content[1]"
    name = {"input_image": "stored image", "input_file": "stored file"}.get(kind, "audio")
    note = f"[{name} left out: this model reads text only]"
    assert prompt_of(shown, ANSWER, HELLO).messages[0].content == f"look\n{note}"
    output = {"type": "function_call_output", "call_id": "c", "output": [part]}
    assert prompt_of(HELLO, output).messages[1].content == note


def test_files_keep_their_names_and_places_and_those_of_other_servers_are_refused() -> None:
    words, part = {"type": "input_text", "text": "look"}, responses_file(b"%PDF-1", "a.pdf")
    [asked] = prompt_of({"role": "user", "content": [words, part]}).messages
    [file] = asked.media
    assert isinstance(file, File)
    assert (file.data, file.name, file.at, file.field) == (b"%PDF-1", "a.pdf", 4, "input[0].content[1].file_data")
    assert refused({"role": "user", "content": [{**part, "file_data": "?"}]}) == "input[0].content[0].file_data"
    remote = {"role": "user", "content": [{"type": "input_file", "file_url": "https://example.org/a.pdf"}]}
    assert refused(remote) == "input[0].content[0]"
    note = "[remote file left out: this model reads text only]"
    assert prompt_of(remote, ANSWER, HELLO).messages[0].content == note


FUNCTION = {
    "type": "function",
    "name": "exec",
    "description": "Run.",
    "parameters": {"type": "object"},
    "strict": False,
}
LARK = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
TOOLS = [
    FUNCTION,
    {"type": "namespace", "name": "agents", "description": "x", "tools": [{"type": "function", "name": "close"}]},
    {"type": "web_search", "external_web_access": True},
    {"type": "custom", "name": "apply_patch", "description": "Edit.", "format": LARK},
    {"type": "tool_search", "execution": "client"},
    {"type": "local_shell"},
]


def _input(text: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"input": text}, "required": ["input"], "additionalProperties": False}


def test_tools_of_every_kind_are_functions_and_hosted_ones_nothing() -> None:
    grammar = {"type": "string", "description": "Matches this lark grammar:\nstart: /.+/"}
    assert prompt_of(tools=TOOLS).tools == (
        ToolSpec("exec", "Run.", {"type": "object"}),
        ToolSpec("agents__close"),
        ToolSpec("apply_patch", "Edit.", _input(grammar), text_grammar=TextGrammar("lark", "start: /.+/")),
    )
    assert prompt_of(tools=TOOLS, tool_choice="none").tools == prompt_of(tools=TOOLS).tools


def test_names_find_their_way_back() -> None:
    tools = body_of(tools=TOOLS).tool_table
    assert tools.wire("exec") == WireTool("exec")
    assert tools.wire("agents__close") == tools.wire("close") == WireTool("close", "agents")
    assert tools.wire("apply_patch") == WireTool("apply_patch", is_custom=True)
    assert tools.wire("nobody") == WireTool("nobody")
    twice = [{"type": "namespace", "name": name, "tools": [{"type": "function", "name": "go"}]} for name in "ab"]
    assert body_of(tools=twice).tool_table.wire("go") == WireTool("go")


def test_tools_in_the_input_are_tools() -> None:
    added = {"type": "additional_tools", "role": "developer", "tools": [*TOOLS, FUNCTION]}
    found = {"type": "tool_search_output", "call_id": "c", "tools": [{"type": "function", "name": "late"}]}
    names = [tool.name for tool in prompt_of(added, HELLO, found, tools=[FUNCTION]).tools]
    assert names == ["exec", "agents__close", "apply_patch", "late"]
    assert body_of([added, HELLO]).tool_table.wire("apply_patch").is_custom


@pytest.mark.parametrize(
    ("input", "param"),
    [
        ([], "input"),
        ([{"content": "x"}], "input[0].type"),
        ([HELLO, {"type": "function_call", "name": "f", "arguments": "{}"}], "input[1].call_id"),
        ([HELLO, {"type": "function_call", "call_id": "c", "name": "f", "arguments": {}}], "input[1].arguments"),
        ([{"role": "user", "content": [{"type": "input_text"}]}], "input[0].content[0].text"),
        ([{"type": "additional_tools", "tools": [{"type": "function"}]}], "input[0].tools[0].name"),
        ([{"type": "item_reference", "id": "x"}], "input[0]"),
        ([{"type": "item_reference", "id": 5}], "input[0].id"),
        ([HELLO, {"type": "unheard_of", "x": [[], []]}], "input[1].type"),
        ([HELLO, {"type": "", "role": "user"}], "input[1].content"),
        ([HELLO, {"type": 7}], "input[1].type"),
        ([HELLO, []], "input[1]"),
        ([HELLO, ANSWER], "input[1]"),
        (5, "input"),
    ],
)
def test_what_is_wrong_is_named(input: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        chat_prompt(body_of(input))
    assert error.value.param == param


def test_every_type_of_item_that_openai_s_package_knows_is_read_or_left_out() -> None:
    hints = [get_type_hints(kind) for kind in get_args(ResponseInputItemParam)]
    known = {name for hint in hints if "type" in hint for name in _literals(hint["type"])}
    assert {"message", "web_search_call"} <= known
    assert known <= set(ITEMS) | LEFT_OUT
    for name in LEFT_OUT:
        assert prompt_of(HELLO, {"type": name, "whatever": [[], {}]}) == prompt_of(HELLO)


def _literals(hint: Any) -> Iterator[str]:
    for argument in get_args(hint):
        yield from (argument,) if isinstance(argument, str) else _literals(argument)


def test_what_changes_the_answer_and_cannot_be_had_is_refused() -> None:
    assert refused(conversation="conv_1") == "conversation"
    assert refused(background=True) == "background"
    assert prompt_of(text={"format": {"type": "text"}, "verbosity": "low"}, background=False, new=[1])


@pytest.mark.parametrize(
    ("effort", "kwargs"),
    [
        (None, {}),
        ("none", {"enable_thinking": False, "thinking": False}),
        ("minimal", {"enable_thinking": True, "thinking": True, "reasoning_effort": "low"}),
        ("xhigh", {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"}),
    ],
)
def test_effort_reaches_the_template(effort: str | None, kwargs: dict[str, Any]) -> None:
    assert prompt_of(reasoning={"effort": effort, "summary": "auto"}).template_kwargs == kwargs
