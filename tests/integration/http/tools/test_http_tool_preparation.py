"""The part of a response with tools of servers before its first step: lists, approved calls, a compaction. And its end
by an admin, at any time."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from typing import Any

import pytest

from application.ports.tool_servers import Tool, ToolResult
from application.settings import ServerSettings
from domain.id_row import IdRow
from interfaces.http.answering import answering
from tests.integration.http.dialects.test_http_response_sockets import answered, socket_of, told
from tests.support.browser.admin_api import cancel
from tests.support.http.scripted_tools import (
    NEVER,
    THREE,
    Gate,
    Script,
    ask,
    call,
    kinds,
    refused,
    serving,
    stream_of,
)
from tests.support.mcp.fake_servers import echo

ASKS = {"type": "mcp", "server_label": "time"}


@pytest.fixture
def prompt_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers that wait for nothing."""
    monkeypatch.setattr(answering, "HEADERS_BY_S", 0.0)


def approval(id: str, **fields: Any) -> dict[str, Any]:
    return {"type": "mcp_approval_response", "approval_request_id": id, "approve": True, **fields}


@pytest.mark.usefixtures("prompt_headers")
def test_a_server_that_hangs_delays_its_list_only_and_the_stream_lives_on() -> None:
    with serving(Script(*THREE), settings=ServerSettings(port=0, keepalive_s=0.05)) as (service, servers):
        servers.listing = gate = Gate()
        with stream_of(service) as events:
            types = [next(events)["type"] for _ in range(5)]
            assert types == ["response.created", *["response.in_progress"] * 4]
            assert gate.has_arrived.is_set()
            gate.open()
            rest = list(events)
    answer = rest[-1]["response"]
    assert kinds(answer) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
    numbers = [event["sequence_number"] for event in rest]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.usefixtures("prompt_headers")
def test_a_client_that_leaves_cancels_the_listing() -> None:
    with serving(Script("Hi")) as (service, servers):
        servers.listing = gate = Gate()
        with stream_of(service) as events:
            next(events)
            assert gate.has_arrived.wait(60)
        service.wait_until(lambda: servers.num_waiting == 0, "the listing to be cancelled")


def test_what_needs_no_server_is_refused_before_any_is_asked() -> None:
    with serving(Script("Hi")) as (service, servers):
        servers.listing = Gate()
        for fields in (
            {"tools": [NEVER, {**NEVER, "headers": {"a": "b"}}]},
            {"tools": [NEVER], "temperature": 99},
            {"tools": [NEVER], "tool_choice": {"type": "mcp", "server_label": "files"}},
            {"tools": [NEVER], "input": [{"type": "nothing"}]},
            {"tools": [NEVER], "input": [approval("x")]},
            {"tools": [NEVER] * 1_000},
        ):
            for stream in (False, True):
                assert refused(service, **fields, stream=stream)
        assert not servers.listing.has_arrived.is_set()


@pytest.mark.usefixtures("prompt_headers")
def test_what_only_the_list_shows_fails_the_stream() -> None:
    choice = {"type": "mcp", "server_label": "time", "name": "no"}
    with serving(Script("Hi")) as (service, servers):
        servers.listing = gate = Gate()
        with stream_of(service, tool_choice=choice) as events:
            next(events)
            gate.open()
            *_, last = events
    assert last["type"] == "response.failed"
    assert "tool_choice" in last["response"]["error"]["message"]


@pytest.mark.usefixtures("prompt_headers")
@pytest.mark.parametrize("leaves", [True, False])
def test_an_approved_call_runs_in_the_answer(leaves: bool) -> None:
    gate = Gate()

    async def wait(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        await gate()
        return await echo(tool, arguments)

    with serving(Script(call("time__now"), "Noon."), wait) as (service, servers):
        asked = ask(service, tools=[ASKS])
        decision = [approval(asked["output"][1]["id"])]
        with stream_of(service, tools=[ASKS], previous_response_id=asked["id"], input=decision) as events:
            assert next(events)["type"] == "response.created"
            assert gate.has_arrived.wait(60)
            if not leaves:
                gate.open()
                answer = list(events)[-1]["response"]
        if leaves:
            service.wait_until(lambda: servers.cancelled == [("time", "now")], "the call to be cancelled")
        else:
            assert kinds(answer) == ["mcp_call", "message"]


@pytest.mark.usefixtures("prompt_headers")
@pytest.mark.parametrize("held", ["listing", "call", "later call"])
def test_an_admin_cancels_what_runs_of_an_answer(held: str) -> None:
    gate = Gate()

    async def wait(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        if (tool == "convert") == (held == "later call"):
            await gate()
        return await echo(tool, arguments)

    with serving(Script(*THREE), wait) as (service, servers):
        servers.listing = gate if held == "listing" else None
        with stream_of(service) as events:
            id = next(events)["response"]["id"]
            assert gate.has_arrived.wait(60)
            assert cancel(service, id).status_code == 200
            *_, last = events
        assert last["type"] == "response.failed"
        assert len(servers.cancelled) == (held != "listing")
        assert servers.num_waiting == 0
        assert cancel(service, id).status_code == 404


@pytest.mark.parametrize("tools", [[], [{**ASKS, "server_label": "files"}], [{**ASKS, "allowed_tools": ["convert"]}]])
def test_an_approval_of_what_the_request_does_not_offer_is_refused_by_name(tools: list[dict[str, Any]]) -> None:
    with serving(Script(call("time__now"), "Noon.")) as (service, servers):
        asked = ask(service, tools=[ASKS])
        decision = [approval(asked["output"][1]["id"])]
        field = refused(service, tools=tools, previous_response_id=asked["id"], input=decision)
        assert field == "input[0].approval_request_id"
        assert servers.calls == []


def test_an_approval_beside_a_trigger_is_refused_by_name() -> None:
    with serving(Script(call("time__now"), "Noon.")) as (service, servers):
        asked = ask(service, tools=[ASKS])
        decision = [approval(asked["output"][1]["id"]), {"type": "compaction_trigger"}]
        assert refused(service, tools=[ASKS], previous_response_id=asked["id"], input=decision) == "input[0]"
        assert servers.calls == []


def test_an_approved_call_is_run_and_read_beside_a_compaction() -> None:
    script = Script(call("time__now", '{"a": 1}'), "A summary.", "Noon.", "Bye.")
    with serving(script) as (service, servers):
        asked = ask(service, tools=[ASKS])
        edits = [{"type": "compaction", "compact_threshold": 1}]
        decision = [approval(asked["output"][1]["id"])]
        answer = ask(service, tools=[ASKS], context_management=edits, previous_response_id=asked["id"], input=decision)
        assert kinds(answer) == ["compaction", "mcp_call", "message"]
        assert servers.calls == [("time", "now", {"a": 1})]
        assert "A summary." in script.text(2)
        assert "now got {'a': 1}" in script.text(2)
        ask(service, tools=[ASKS], previous_response_id=answer["id"], input="Thanks")
    assert script.prompts[3][: len(script.prompts[2])] == script.prompts[2]


def test_a_compaction_of_a_conversation_with_tools_reuses_its_prompt() -> None:
    script = Script(call("time__now"), "Noon.", "A summary.")
    with serving(script) as (service, _):
        answer = ask(service)
        compacted = ask(service, previous_response_id=answer["id"], input=[{"type": "compaction_trigger"}])
        assert kinds(compacted) == ["compaction"]
    assert script.prompts[2][: len(script.prompts[1])] == script.prompts[1]


def test_a_required_call_may_be_one_of_a_servers_tool() -> None:
    with serving(Script("Hi")) as (service, servers):
        assert refused(service, tools=[NEVER], tool_choice="required") == "tools"  # the toy engine enforces no calls
        servers.dead.add("time")
        assert refused(service, tools=[NEVER], tool_choice="required") == "tool_choice"


@pytest.mark.parametrize("needs_approval", [False, True])
def test_a_name_without_its_server_is_rendered_as_it_was_sampled(needs_approval: bool) -> None:
    script = Script(call("now"), "Noon.", "Bye.")
    with serving(script) as (service, servers):
        answer = ask(service, tools=[ASKS if needs_approval else NEVER])
        if needs_approval:
            decision = [approval(answer["output"][1]["id"])]
            answer = ask(service, tools=[ASKS], previous_response_id=answer["id"], input=decision)
        last = ask(service, previous_response_id=answer["id"], input="Thanks")
        assert servers.calls == [("time", "now", {})]
    usage = last["usage"]
    assert "<call>now" in script.text(1)
    assert script.prompts[2][: len(script.prompts[1])] == script.prompts[1]
    new = len(script.prompts[2]) - len(script.prompts[1]) - len("Noon.")
    assert usage["input_tokens"] - usage["input_tokens_details"]["cached_tokens"] <= new + 16


def test_a_websocket_has_the_same_events_and_goes_on_from_them() -> None:
    script = Script(*THREE, "Bye.")
    with serving(script) as (service, servers), socket_of(service) as socket:
        events = told(socket, input="What time is it?", tools=[NEVER], max_output_tokens=None)
        names = [event["type"] for event in events]
        assert names[:2] == ["response.created", "response.in_progress"]
        assert names.index("response.mcp_list_tools.completed") < names.index("response.mcp_call.completed")
        answer = events[-1]["response"]
        assert kinds(answer) == ["mcp_list_tools", "mcp_call", "mcp_call", "message"]
        last = answered(socket, input="Thanks", tools=[NEVER], previous_response_id=answer["id"])
        assert kinds(last) == ["message"]
        assert len(servers.calls) == 2
    assert script.prompts[3][: len(script.prompts[2])] == script.prompts[2]


def test_a_list_that_changes_in_an_answer_changes_nothing_of_it() -> None:
    script = Script(*THREE)

    async def changes(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        servers.set_tool(Tool("time", "another", "Is new.", {"type": "object"}))
        servers.set_tool(Tool("time", "convert", "Is another.", {"type": "object"}))
        return await echo(tool, arguments)

    with serving(script, changes) as (service, servers):
        answer = ask(service)
    assert [tool["name"] for tool in answer["output"][0]["tools"]] == ["convert", "now"]
    for before, after in pairwise(script.prompts):
        assert after[: len(before)] == before


def test_two_answers_on_one_server_have_each_their_own_results() -> None:
    both = asyncio.Barrier(2)

    async def meet(tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        await both.wait()
        return await echo(tool, arguments)

    def reply(prompt_ids: IdRow) -> tuple[int, ...]:
        text = bytes(id for id in prompt_ids if id < 256).decode()
        name = "now" if "first" in text else "convert"
        return tuple(("Done." if " got " in text else call(f"time__{name}")).encode())

    with serving(reply, meet) as (service, _), ThreadPoolExecutor(2) as threads:
        answers = list(threads.map(lambda asked: ask(service, input=asked), ("first", "second")))
    assert [answer["output"][1]["output"] for answer in answers] == ["now got {}", "convert got {}"]


@pytest.mark.usefixtures("prompt_headers")
def test_many_streams_that_wait_for_a_list_hold_up_nobody_else() -> None:
    with serving(Script("Hi.")) as (service, servers), ExitStack() as stack:
        servers.listing = gate = Gate()
        streams = [stack.enter_context(stream_of(service)) for _ in range(20)]
        assert [next(events)["type"] for events in streams] == ["response.created"] * 20
        assert kinds(ask(service, tools=[])) == ["message"]
        gate.open()
        assert [list(events)[-1]["type"] for events in streams] == ["response.completed"] * 20
