"""Servers that a request names itself, by a URL on a host that the operator lists, in both dialects."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.mcp.requested import requested_server
from application.ports.tool_servers import RequestedServer, ToolServers
from domain.client import Client
from tests.support.http import scripted_messages as messages
from tests.support.http import scripted_tools as responses
from tests.support.http.scripted_tools import Script, call, serving
from tests.support.http.servers.fake_service import FakeService, headers, keyed_service
from tests.support.mcp.fake_servers import FakeToolServers

URL = "https://tools.example/mcp?secret=1"
OWN = {"type": "url", "name": "mine", "url": URL, "authorization_token": "s3cret"}
TOOL = {"type": "mcp", "server_label": "mine", "server_url": URL, "authorization": "s3cret"}
NEVER = {"require_approval": "never"}


class Opened:
    """An OpenRequested. `asked`: what was opened; `servers`: in its order."""

    def __init__(self) -> None:
        self.asked: list[RequestedServer] = []
        self.servers: list[FakeToolServers] = []

    def __call__(self, server: RequestedServer) -> ToolServers:
        requested_server(server, ["tools.example"], 4096)  # raises as it does
        self.asked.append(server)
        self.servers.append(FakeToolServers({server.name: ["add"]}))
        return self.servers[-1]

    def are_closed(self) -> bool:
        return all(one.is_closed for one in self.servers)


@contextmanager
def opening(script: Script, *, asks: bool = False) -> Iterator[tuple[FakeService, FakeToolServers, Opened]]:
    opened = Opened()
    with serving(script, open_requested=opened, asks_requested=asks) as (service, servers):
        yield service, servers, opened


def test_a_message_calls_the_tools_of_its_own_server_which_alone_gets_the_secret_and_is_closed() -> None:
    with opening(script := Script(call("mine__add"), "Done.")) as (service, servers, opened):
        answer = messages.ask(service, mcp_servers=[OWN, messages.TIME])
        assert [block["type"] for block in answer["content"]][-1] == "text"
        (asked,), (own,) = opened.asked, opened.servers
        assert asked == RequestedServer("mine", URL, {"Authorization": "Bearer s3cret"})
        assert (own.calls, servers.calls) == ([("mine", "add", {})], [])
        counted = messages.post(service, "/v1/messages/count_tokens", mcp_servers=[OWN, messages.TIME]).json()
        service.wait_until(opened.are_closed, "both servers to be closed")
        assert "s3cret" not in repr(asked)
    assert counted["input_tokens"] == len(script.prompts[0])


def test_a_response_calls_the_tools_of_its_own_server_and_repeats_no_secret() -> None:
    with opening(script := Script(call("mine__add"), "Done.")) as (service, _, opened):
        tool = {**TOOL, **NEVER, "headers": {"x-team": "t0p"}}
        answer = responses.ask(service, tools=[tool])
        assert responses.kinds(answer) == ["mcp_list_tools", "mcp_call", "message"]
        assert opened.asked[0].headers == {"Authorization": "Bearer s3cret", "x-team": "t0p"}
        assert opened.servers[0].calls == [("mine", "add", {})]
        kept = service.client.get(f"/v1/responses/{answer['id']}").text
        streamed = str(responses.events_of(service, tools=[tool]))
        counted = service.client.post("/v1/responses/input_tokens", json={"input": "What time is it?", "tools": [tool]})
        service.wait_until(opened.are_closed, "all servers to be closed")
    for text in (str(answer), kept, streamed):
        assert "s3cret" not in text
        assert "t0p" not in text
    assert counted.json()["input_tokens"] == len(script.prompts[0])


def test_calls_of_such_a_server_need_approval_unless_the_operator_says_never() -> None:
    with opening(Script(call("mine__add"), "Done."), asks=True) as (service, _, opened):
        assert messages.refused(service, mcp_servers=[OWN]) == "mcp_servers[0].name"
        assert opened.asked == []
        asked = responses.ask(service, tools=[{**TOOL, **NEVER}])
        assert responses.kinds(asked) == ["mcp_list_tools", "mcp_approval_request"]
        decision = {"type": "mcp_approval_response", "approval_request_id": asked["output"][1]["id"], "approve": True}
        fields: Any = {"previous_response_id": asked["id"], "input": [decision]}
        answer = responses.ask(service, tools=[{**TOOL, **NEVER}], **fields)
        assert responses.kinds(answer) == ["mcp_call", "message"]
        assert [one.calls for one in opened.servers] == [[], [("mine", "add", {})]]


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"url": "http://tools.example/"}, "url"),
        ({"url": "https://other.example/"}, "url"),
        ({"url": "https://127.0.0.1/"}, "url"),
        ({"name": "time"}, "url"),
        ({"name": "a__b"}, "name"),
        ({"authorization_token": "a\r\nb: c"}, "authorization_token"),
        ({"authorization_token": "${HOME}"}, "authorization_token"),
        ({"name": "time", "url": None}, "authorization_token"),
    ],
)
def test_a_message_is_refused_by_the_field_that_no_request_may_send(changed: dict[str, Any], field: str) -> None:
    with opening(Script("Hi.")) as (service, _, opened):
        assert messages.refused(service, mcp_servers=[{**OWN, **changed}]) == f"mcp_servers[0].{field}"
        assert opened.asked == []


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"server_url": "http://tools.example/"}, "server_url"),
        ({"server_url": "https://other.example/"}, "server_url"),
        ({"server_label": "time"}, "server_url"),
        ({"server_label": "a__b"}, "server_label"),
        ({"authorization": "a\r\nb: c"}, "authorization"),
        ({"authorization": None, "headers": {"Host": "a"}}, "headers"),
        ({"headers": {"authorization": "Bearer other"}}, "authorization"),
        ({"headers": {"x": 1}}, "headers"),
        ({"server_label": "time", "server_url": None}, "authorization"),
        ({"server_label": "time", "server_url": None, "authorization": None, "headers": {"x": "y"}}, "headers"),
    ],
)
def test_a_response_is_refused_by_the_field_that_no_request_may_send(changed: dict[str, Any], field: str) -> None:
    with opening(Script("Hi.")) as (service, _, opened):
        assert responses.refused(service, tools=[{**TOOL, **changed}]) == f"tools[0].{field}"
        assert opened.asked == []


def test_a_key_names_only_hosts_that_its_mcp_lists_and_learns_of_no_configured_server() -> None:
    clients = Client("some", mcp=frozenset({"tools.example"})), Client("none"), Client("time", mcp=frozenset({"time"}))
    opened = Opened()
    options: Any = {"tool_servers": FakeToolServers({"time": ["now"]}), "open_requested": opened}
    options["asks_requested"] = False
    with keyed_service(*clients, options=FakeOptions(reply=Script("Hi")), **options) as service:

        def status(key: str, name: str) -> int:
            body = {"max_tokens": 9, "messages": [messages.ASKED], "mcp_servers": [{**OWN, "name": name}]}
            return service.client.post("/v1/messages", json=body, headers=headers(key)).status_code

        assert [status(key, "mine") for key in ("some", "none", "time")] == [200, 400, 400]
        assert status("some", "time") == 200  # a name like any other
        assert [(one.name, one.headers) for one in opened.asked] == [
            (name, {"Authorization": "Bearer s3cret"}) for name in ("mine", "time")
        ]


def test_a_server_of_the_request_that_cannot_be_used_has_no_tools_and_the_rest_goes_on() -> None:
    def dead(server: RequestedServer) -> ToolServers:
        servers = FakeToolServers({server.name: ["add"]})
        servers.dead.add(server.name)
        return servers

    with serving(Script("Hi."), open_requested=dead, asks_requested=False) as (service, _):
        response = messages.post(service, mcp_servers=[messages.TIME, OWN])
        answer = responses.ask(service, tools=[TOOL])
    assert (response.status_code, response.headers["x-cairn-ignored"]) == (200, "mcp_servers[1]")
    assert answer["output"][0]["error"]["type"] == "http_error"
