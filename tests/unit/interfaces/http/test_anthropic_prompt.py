"""What a body of /v1/messages becomes: the conversation, the tools and what is refused, by name."""

from typing import Any

import msgspec
import pytest

from domain.errors import InvalidRequest
from domain.request.chat import ChatMessage, Role, ToolCall, ToolSpec
from domain.request.file import File
from domain.request.grammar import json_schema_grammar
from domain.request.media import Image
from domain.request.reasoning_budget import NO_REASONING, ReasoningLimit
from domain.request.request import ChatPrompt
from interfaces.http.anthropic.conversation import input_of
from interfaces.http.anthropic.messages import MessagesRequest, chat_prompt, reasoning_limit
from interfaces.http.incoming.json_body import body_decoder
from tests.support.http.files import document

decode = body_decoder(MessagesRequest)
HELLO = {"role": "user", "content": "hi"}
ANSWER = {"role": "assistant", "content": "yes"}


def body_of(**fields: Any) -> MessagesRequest:
    return decode(msgspec.json.encode({"model": "m", "max_tokens": 5, "messages": [HELLO], **fields}))


def prompt_of(*messages: dict[str, Any], **fields: Any) -> ChatPrompt:
    return chat_prompt(body_of(messages=list(messages) or [HELLO], **fields))


def user(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "user", "content": [text(block) if isinstance(block, str) else block for block in blocks]}


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


def said(text: str, role: Role = Role.USER) -> ChatMessage:
    return ChatMessage(role, text)


def refused(*messages: dict[str, Any], **fields: Any) -> str:
    with pytest.raises(InvalidRequest) as error:
        prompt_of(*messages, **fields)
    return str(error.value.param)


def test_the_form_of_an_answer_has_two_names() -> None:
    schema: dict[str, Any] = {"type": "json_schema", "schema": {"type": "object", "properties": {}}}
    older, newer = body_of(output_format=schema), body_of(output_config={"format": schema})
    assert older.grammar == newer.grammar == json_schema_grammar(schema["schema"], "x")
    with pytest.raises(InvalidRequest) as error:
        _ = body_of(output_format={"type": "json_schema", "schema": {"not": {}}}).grammar
    assert error.value.param == "output_format.schema"
    assert (older.wire_names()["grammar"], newer.wire_names()["grammar"]) == ("output_format", "output_config.format")
    both = body_of(output_format=schema, output_config={"format": schema})
    with pytest.raises(InvalidRequest, match="output_format"):
        _ = both.grammar


def test_a_string_is_one_block_of_text_and_marks_stay_out() -> None:
    marked = user({**text("hi"), "cache_control": {"type": "ephemeral"}, "citations": None, "new": 1})
    assert prompt_of(HELLO) == prompt_of(marked) == prompt_of(user("hi", ""))
    assert prompt_of(HELLO).messages == (said("hi"),)


def test_every_role_stays_in_its_place() -> None:
    late = {"role": "system", "content": "late"}
    found = prompt_of(HELLO, late, ANSWER, {"role": "developer", "content": [text("d")]}, {**HELLO, "role": "narrator"})
    assert found.messages == (
        *(said("hi"), said("late", Role.SYSTEM), said("yes", Role.ASSISTANT)),
        *(said("d", Role.DEVELOPER), said("hi")),
    )


def test_the_line_that_changes_with_every_question_is_dropped() -> None:
    billing = text("x-anthropic-billing-header: cc_version=2.1.197.abc; cc_entrypoint=cli;")
    system = [billing, text("You are.", cache_control={"type": "ephemeral"}), text("Main.")]
    assert prompt_of(system=system).messages[0] == said("You are.\nMain.", Role.SYSTEM)
    assert prompt_of(system=[billing]) == prompt_of(system="") == prompt_of(system=None) == prompt_of()


def test_an_answer_is_one_message_whatever_its_blocks() -> None:
    blocks = [
        {"type": "text", "text": ""},
        {"type": "thinking", "thinking": "Hm.", "signature": "msg-1.0"},
        {"type": "redacted_thinking", "data": "xyz"},
        text("Let me "),
        text("look."),
        {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"command": "ls", "a": 10000.0, "é": None}},
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
        {"type": "tool_use", "id": "t2", "name": "Now", "input": {}, "cache_control": {"type": "ephemeral"}},
    ]
    (answer,) = prompt_of({"role": "assistant", "content": blocks}, HELLO).messages[:-1]
    calls = (ToolCall("t1", "Bash", '{"command":"ls","a":10000.0,"é":null}'), ToolCall("t2", "Now", "{}"))
    assert answer == ChatMessage(Role.ASSISTANT, "Let me look.", reasoning="Hm.", tool_calls=calls)
    assert prompt_of({"role": "assistant", "content": [text("")]}, HELLO) == prompt_of(HELLO)


def test_what_claude_code_could_not_parse_comes_back_as_it_was() -> None:
    unparsed = {"__unparsedToolInput": {"raw": '{"command": "ls"', "len": 16}}
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": unparsed}
    (answer,) = prompt_of({"role": "assistant", "content": [call]}, HELLO).messages[:-1]
    assert answer.tool_calls[0].arguments == '{"command": "ls"'


def test_half_a_character_that_a_model_wrote_leaves_the_input_an_object() -> None:
    assert input_of(r'{"a": "x\ud83d"}') == {"a": "x�"}


def test_results_of_tools_are_messages_of_their_own() -> None:
    found = prompt_of(
        user(
            {"type": "tool_result", "tool_use_id": "t1", "content": "3", "is_error": False},
            {"type": "tool_result", "tool_use_id": "t2", "content": [text("a"), text("b")], "is_error": True},
            {"type": "tool_result", "tool_use_id": "t3"},
            "And now?",
        )
    )
    assert found.messages == (
        ChatMessage(Role.TOOL, "3", tool_call_id="t1"),
        ChatMessage(Role.TOOL, "a\nb", tool_call_id="t2", is_error=True),
        ChatMessage(Role.TOOL, "", tool_call_id="t3"),
        said("And now?"),
    )


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
REMOTE = {"type": "document", "source": {"type": "url", "url": "https://example.org/a.pdf"}}


STORED = {"type": "image", "source": {"type": "file", "file_id": "file_1"}}


def test_images_keep_their_places_among_texts_and_in_results_of_tools() -> None:
    [asked] = prompt_of(user("look", IMAGE, "at", "this", IMAGE)).messages
    assert asked.content == "lookat\nthis"
    assert [image.at for image in asked.images] == [4, 11]
    assert [image.field for image in asked.images] == [f"messages[0].content[{at}].source.data" for at in (1, 4)]
    assert asked.images[0] == Image(b"\0\0\0")
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [text("seen"), IMAGE], "is_error": True}
    [told, more] = prompt_of(user(result, IMAGE)).messages
    assert (told.role, told.content, told.images[0].at, more.content) == (Role.TOOL, "seen", 4, "")
    assert (told.for_model.content, told.for_model.images[0].at) == ("Error: seen", 11)
    assert more.images == told.images
    url = {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}
    assert prompt_of(user(url)).images == (Image(b"", url="https://example.org/a.png"),)


@pytest.mark.parametrize(
    ("block", "name"), [(STORED, "stored image"), (REMOTE, "stored document")], ids=["image", "document"]
)
def test_media_are_refused_where_nothing_is_lost_and_left_out_where_a_session_would_end(
    block: dict[str, Any], name: str
) -> None:
    assert refused(user("look", block)) == "messages[0].content[1]"
    note = f"[{name} left out: this model reads text only]"
    assert prompt_of(user("look", block), ANSWER, HELLO).messages[0] == said(f"look\n{note}")
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    assert prompt_of(user(result)).messages == (ChatMessage(Role.TOOL, note, tool_call_id="t1"),)


def test_documents_of_text_and_search_results_are_read() -> None:
    plain = {"type": "document", "title": "T", "source": {"type": "text", "media_type": "text/plain", "data": "words"}}
    parts = {"type": "document", "source": {"type": "content", "content": [text("one"), text("two")]}}
    found = {"type": "search_result", "source": "s", "title": "t", "content": [text("hit")]}
    assert prompt_of(user(plain, parts, found)).messages == (said("T\nwords\none\ntwo\nt\ns\nhit"),)


def test_documents_of_files_keep_their_places_behind_their_titles() -> None:
    block = {**document(b"%PDF-1"), "title": "T", "context": "C"}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [block]}
    for message in prompt_of(user(result, block)).messages:
        [file] = message.media
        assert isinstance(file, File)
        assert (message.content, file.data, file.at) == ("T\nC", b"%PDF-1", 3)
        assert file.field.endswith(".source.data")


def test_unknown_blocks_become_nothing() -> None:
    assert prompt_of(user("hi", {"type": "hologram", "content": {"deep": 1}})) == prompt_of(HELLO)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ([user({"text": "x"})], "messages[0].content[0].type"),
        ([user({"type": "text", "text": 5})], "messages[0].content[0].text"),
        ([HELLO, user({"type": "tool_result"})], "messages[1].content[0].tool_use_id"),
        (
            [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": "x"}]}, HELLO],
            "messages[0].content[0].input",
        ),
        (
            [HELLO, {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n", "input": {}}]}],
            "messages",
        ),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": 5, "content": ""}], "messages[0].role"),
    ],
)
def test_what_is_wrong_is_named(messages: list[dict[str, Any]], param: str) -> None:
    with pytest.raises(InvalidRequest) as error:
        chat_prompt(body_of(messages=messages))
    assert error.value.param == param


def test_a_last_message_of_the_assistants_is_continued() -> None:
    prompt = prompt_of(HELLO, ANSWER)
    assert (prompt.continues, prompt.prefilled) == (True, "yes")
    assert not prompt_of(HELLO, ANSWER, HELLO).continues
    assert prompt_of(HELLO, {"role": "assistant", "content": ""}) == prompt_of(HELLO)


@pytest.mark.parametrize(
    ("thinking", "limit"),
    [
        (None, None),
        ({"type": "enabled", "budget_tokens": 1024}, ReasoningLimit(1024, is_firm=False)),
        ({"type": "adaptive", "budget_tokens": 9}, None),
        ({"type": "disabled"}, NO_REASONING),
    ],
)
def test_a_budget_of_thinking_is_a_limit(thinking: dict[str, Any] | None, limit: ReasoningLimit | None) -> None:
    assert reasoning_limit(body_of(messages=[HELLO], thinking=thinking)) == limit


def test_tools_are_shown_as_they_come_and_hosted_ones_not_at_all() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}
    tools = [
        {"name": "Bash", "description": "Run.", "input_schema": schema, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
        {"type": "custom", "name": "Now", "input_schema": {"type": "object"}, "strict": True},
    ]
    shown = (ToolSpec("Bash", "Run.", schema), ToolSpec("Now", "", {"type": "object"}, strict=True))
    assert prompt_of(tools=tools).tools == prompt_of(tools=tools, tool_choice={"type": "auto"}).tools == shown
    assert list(prompt_of(tools=tools).tools[0].parameters["properties"]) == ["b", "a"]  # type: ignore[arg-type]
    assert prompt_of(tools=tools, tool_choice={"type": "none"}).tools == shown
    assert refused(tools=[{"name": "x"}]) == "tools[0].input_schema"


@pytest.mark.parametrize(
    ("fields", "kwargs"),
    [
        ({}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "disabled"}}, {"enable_thinking": False, "thinking": False}),
        ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, {"enable_thinking": True, "thinking": True}),
        (
            {"thinking": {"type": "adaptive", "display": "omitted"}, "output_config": {"effort": "max"}},
            {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
        ),
    ],
    ids=["absent", "disabled", "enabled", "adaptive"],
)
def test_thinking_and_effort_reach_the_template(fields: dict[str, Any], kwargs: dict[str, Any]) -> None:
    assert prompt_of(**fields).template_kwargs == kwargs


def test_what_changes_the_answer_and_cannot_be_had_is_refused() -> None:
    assert refused(compaction={"type": "x"}) == "compaction"
    assert prompt_of(mcp_servers=[], metadata={"user_id": "x"}, service_tier="auto", new_field={"deep": [1]})


def test_what_nests_without_end_is_read_as_far_as_it_makes_sense() -> None:
    nested: dict[str, Any] = text("inmost")
    for _ in range(200):
        nested = {"type": "document", "title": "t", "source": {"type": "content", "content": [nested]}}
    assert prompt_of(user(nested)).messages == (said("t"),)
