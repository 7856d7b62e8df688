"""Tools of servers on the chat page: switched on one by one, their calls shown, allowed or refused by the reader."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from application.ports.tool_servers import ResultPart, Tool, ToolResult
from domain.client import Client
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.browser.chat_page import ChatPage
from tests.support.browser.scripted_chat import ScriptedChat
from tests.support.http.files import pdf
from tests.support.http.servers.fake_service import FakeService, Serving, fake_service, headers, keyed_service
from tests.support.mcp.fake_servers import Answer, FakeToolServers, echo

BOTH = [(WIDE, "light"), (PHONE, "dark"), (WIDE, "dark"), (PHONE, "light")]
NOON = "It is **noon**."
FAR = "It is a long way from here to the cairn on the hill, and longer in the rain."
SCRIPT = {
    "What time?": 'I look.\n<call>time__now {"zone": "UTC"}</call>',
    "now got": NOON,
    "What is in it?": '\n<call>files__read {"path": "/a"}</call>',
    "read got": "It has stones.",
    "did not approve": "As you like.",
    "Both?": '\n<call>files__read {"path": "/a"}</call>\n<call>files__write {}</call>',
    "How far?": "\n<call>time__convert {}</call>",
    "convert got": FAR,
    "And then?": "Nothing more.",
    "At length?": '\n<call>files__write {"text": "' + "a" * 2500 + '", "path": "/etc"}</call>',
    "Picture?": "<think>Hm.</think>I look.\n<call>time__now {}</call>",
}
PAPER = pdf("A cairn is a pile of stones.")
HOSTILE = "<img src=x onerror=alert(1)>**not bold**\u202e" + "x" * 3000


def servers(answer: Answer = echo) -> FakeToolServers:
    return FakeToolServers({"time": ["now", "convert"], "files": ["read", "write"]}, answer)


class _Tools:
    """A page of a server with tools. `script`: the model."""

    def __init__(self, serving: Serving, watch: Callable[..., Any], fake: FakeToolServers, **options: Any) -> None:
        self.script = ScriptedChat(SCRIPT)
        self.servers = fake
        running = fake_service(self.script.options, tool_servers=fake, approvals={"time": False}, reuses=True)
        self.service: FakeService = serving(running)
        address = self.service.base_url
        self.chat = ChatPage(watch(address, **options).open(f"{address}/chat"))
        self.panel = self.chat.page.locator("#server-tools")

    def group(self, server: str) -> Any:
        return self.panel.get_by_role("group", name=f"Tools of {server}")

    def switch_on(self, *names: str) -> None:
        self.panel.locator("> summary").click()
        for name in names:
            self.panel.get_by_role("switch", name=name).check()
        self.panel.locator("> summary").click()

    def asked(self, text: str) -> Any:
        """The body of the request that a question makes."""
        with self.chat.page.expect_request("**/v1/responses") as sent:
            self.chat.ask(text)
        self.chat.wait_until_answered()
        return sent.value.post_data_json

    @property
    def prompt_tokens(self) -> int:
        """Those of the last step."""
        return int(self.service.events.of("RequestEnded")[-1].usage.prompt_tokens)

    @property
    def reused_tokens(self) -> int:
        """The same."""
        return int(self.service.events.of("RequestEnded")[-1].usage.reused_tokens)

    @property
    def card(self) -> Any:
        return self.chat.answer().locator(".approval")

    def row(self, text: str) -> Any:
        return self.chat.answer().locator("details.call").filter(has_text=text)


@pytest.fixture
def opened(serving: Serving, watch: Callable[..., Any]) -> Callable[..., _Tools]:
    def tools(fake: FakeToolServers | None = None, **options: Any) -> _Tools:
        return _Tools(serving, watch, fake or servers(), **options)

    return tools


@pytest.mark.parametrize(("size", "scheme"), BOTH)
def test_a_tool_is_switched_on_called_shown_and_kept(
    size: tuple[int, int], scheme: str, opened: Callable[..., _Tools]
) -> None:
    tools = opened(size=size, scheme=scheme)
    chat = tools.chat
    expect(tools.panel.locator("> summary")).to_have_text("Tools of servers: off")
    tools.panel.locator("> summary").click()
    expect(tools.group("time")).to_contain_text("runs without asking")
    expect(tools.group("files")).to_contain_text("asks before each call")
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)
    tools.panel.locator("> summary").click()
    tools.switch_on("now")
    expect(tools.panel.locator("> summary")).to_have_text("Tools of servers: 1 on")
    body = tools.asked("What time?")
    assert body["tools"] == [
        {"type": "mcp", "server_label": "time", "allowed_tools": ["now"], "require_approval": "never"}
    ]
    assert body["store"] is False
    row = tools.row("time: now")
    expect(row).to_contain_text("result")
    expect(row).not_to_have_attribute("open", "")
    row.locator("summary").click()
    expect(row).to_contain_text('"zone": "UTC"')
    expect(row).to_contain_text("now got {'zone': 'UTC'}")
    expect(chat.answer().locator(".markdown strong")).to_have_text("noon")
    expect(chat.page.locator("#announcer")).to_have_text("Answer: I look. It is noon.")
    assert int(chat.figure("reused").split()[0]) > 0
    assert tools.servers.calls == [("time", "now", {"zone": "UTC"})]
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)
    chat.page.reload()
    expect(tools.row("time: now")).to_contain_text("result")
    expect(tools.panel.locator("> summary")).to_have_text("Tools of servers: 1 on")
    before = tools.prompt_tokens
    later = tools.asked("And then?")["input"]
    assert [item.get("type", item.get("role")) for item in later] == [
        "user",
        "assistant",
        "mcp_call",
        "assistant",
        "user",
    ]
    assert tools.reused_tokens >= before - 16


@pytest.mark.parametrize(("size", "scheme"), BOTH)
def test_a_call_that_needs_approval_is_a_card_that_a_reload_keeps(
    size: tuple[int, int], scheme: str, opened: Callable[..., _Tools]
) -> None:
    tools = opened(size=size, scheme=scheme)
    chat = tools.chat
    tools.switch_on("read")
    tools.asked("What is in it?")
    expect(tools.card).to_be_focused()
    expect(tools.card).to_contain_text("files: read")
    expect(tools.card).to_contain_text('"path": "/a"')
    expect(chat.page.locator("#announcer")).to_have_text("Answer: Approval is needed for a call of files__read.")
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)
    assert tools.servers.calls == []
    before = tools.prompt_tokens
    chat.page.reload()
    expect(tools.card).to_contain_text("files: read")
    chat.button("Approve").press("Enter")
    chat.wait_until_answered()
    expect(chat.answer()).to_contain_text("It has stones.")
    expect(tools.row("files: read")).to_contain_text("result")
    assert tools.reused_tokens >= before - 16
    expect(tools.card).to_have_count(0)
    expect(chat.thread.locator(".answer")).to_have_count(1)
    assert tools.servers.calls == [("files", "read", {"path": "/a"})]
    assert grave_findings(chat.page) == []


def test_a_refused_call_is_not_run_and_the_answer_goes_on(opened: Callable[..., _Tools]) -> None:
    tools = opened()
    tools.switch_on("read")
    tools.asked("What is in it?")
    tools.chat.button("Refuse").click()
    tools.chat.wait_until_answered()
    expect(tools.chat.answer()).to_contain_text("As you like.")
    expect(tools.row("files: read")).to_contain_text("refused")
    assert tools.servers.calls == []


def test_two_calls_are_decided_one_by_one(opened: Callable[..., _Tools]) -> None:
    tools = opened()
    tools.switch_on("read", "write")
    tools.asked("Both?")
    expect(tools.card).to_have_count(2)
    tools.card.first.get_by_role("button", name="Approve").press("Enter")
    expect(tools.card).to_have_count(1)
    expect(tools.card).to_be_focused()
    assert tools.servers.calls == []
    tools.card.get_by_role("button", name="Refuse").press("Enter")
    tools.chat.wait_until_answered()
    assert tools.servers.calls == [("files", "read", {"path": "/a"})]
    expect(tools.row("files: write")).to_contain_text("refused")


def test_what_is_approved_has_been_shown_whole(opened: Callable[..., _Tools]) -> None:
    tools = opened()
    tools.switch_on("write")
    tools.asked("At length?")
    expect(tools.card.get_by_role("button", name="Approve")).to_be_disabled()
    expect(tools.card).not_to_contain_text("/etc")
    tools.card.get_by_role("button", name="Show more").press("Enter")
    expect(tools.card).to_contain_text('"path": "/etc"')
    tools.card.get_by_role("button", name="Approve").click()
    tools.chat.wait_until_answered()
    assert [tool for _, tool, _ in tools.servers.calls] == ["write"]


def test_a_broken_approval_waits_again(opened: Callable[..., _Tools]) -> None:
    tools = opened(allows=["503 (Service Unavailable)"])
    tools.switch_on("read")
    tools.asked("What is in it?")
    page = tools.chat.page

    def busy(route: Any) -> None:
        route.fulfill(status=503, json={"error": {"message": "busy"}})

    page.route("**/v1/responses", busy)
    tools.chat.button("Approve").click()
    expect(tools.card).to_contain_text("The call may have run. If you approve it, it runs again.")
    expect(tools.chat.answer()).to_contain_text("The server is not ready.")
    assert grave_findings(page) == []
    page.unroute("**/v1/responses")
    tools.chat.button("Approve").click()
    expect(tools.chat.answer()).to_contain_text("It has stones.")


def test_files_regenerate_and_branches_go_on_working_with_tools(opened: Callable[..., _Tools]) -> None:
    tools = opened()
    chat = tools.chat
    tools.switch_on("now")
    text = {"name": "a.md", "mimeType": "text/plain", "buffer": b"stones"}
    chat.page.locator("#files").set_input_files(
        [text, {"name": "p.pdf", "mimeType": "application/pdf", "buffer": PAPER}]
    )
    expect(chat.page.locator("#composer .file")).to_have_count(2)
    [asked] = tools.asked("Picture?")["input"]
    assert [part["type"] for part in asked["content"]] == ["input_file", "input_text"]
    assert asked["content"][0]["filename"] == "p.pdf"
    expect(chat.answer().locator("details.reasoning").first).to_contain_text("Reasoning")
    with chat.page.expect_request("**/v1/responses") as again:
        chat.button("Regenerate").click()
    chat.wait_until_answered()
    assert again.value.post_data_json["input"] == [asked]
    chat.button("Earlier answer").click()
    expect(tools.row("time: now")).to_contain_text("result")
    expect(chat.answer().locator(".branches")).to_contain_text("1 of 2")
    later = tools.asked("And then?")["input"]
    assert [item.get("type", item.get("role")) for item in later[:4]] == ["user", "reasoning", "assistant", "mcp_call"]


def test_what_servers_say_is_text_that_is_cut(opened: Callable[..., _Tools]) -> None:
    async def hostile(_tool: str, _arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult([ResultPart("now got " + HOSTILE)])

    fake = servers(hostile)
    fake.set_tool(Tool("time", "now", HOSTILE, {"type": "object"}))
    tools = opened(fake)
    tools.panel.locator("> summary").click()
    said = tools.group("time").locator("li").filter(has_text="now")
    expect(said).to_contain_text("<img src=x onerror=alert(1)>**not bold**\\u{202e}xxx")
    assert len(said.inner_text()) < 400
    assert is_as_wide_as_its_window(tools.chat.page)
    tools.group("time").get_by_role("switch", name="now").check()
    tools.panel.locator("> summary").click()
    tools.asked("What time?")
    row = tools.row("time: now")
    row.locator("summary").click()
    result = row.locator("pre").last
    expect(result).to_contain_text("<img src=x onerror=alert(1)>**not bold**\\u{202e}xxx")
    assert len(result.inner_text()) < 2100
    row.get_by_role("button", name="Show more").click()
    expect(result).to_have_text("now got " + HOSTILE.replace("\u202e", "\\u{202e}"))
    assert grave_findings(tools.chat.page) == []
    assert is_as_wide_as_its_window(tools.chat.page)


def test_a_running_call_is_shown_and_stop_cancels_it(opened: Callable[..., _Tools]) -> None:
    async def never(_tool: str, _arguments: Mapping[str, Any]) -> ToolResult:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    tools = opened(servers(never))
    tools.switch_on("now")
    tools.chat.ask("What time?")
    expect(tools.row("time: now")).to_contain_text("running")
    tools.chat.page.keyboard.press("Escape")
    expect(tools.row("time: now")).to_contain_text("no result")
    tools.service.wait_until(lambda: tools.servers.cancelled == [("time", "now")], "the call to be cancelled")
    later = tools.asked("And then?")["input"]
    (call,) = [item for item in later if item.get("type") == "mcp_call"]
    assert call["error"] == "No result came. The call may have run."
    expect(tools.chat.answer()).to_contain_text("Nothing more.")


def test_an_answer_that_was_stopped_after_a_call_is_gone_on_with(opened: Callable[..., _Tools]) -> None:
    tools = opened()
    chat = tools.chat
    tools.switch_on("convert")
    tools.script.hold_at(50)
    chat.ask("How far?")
    tools.script.wait_until_held()
    expect(chat.answer().locator(".markdown").last).to_have_text(FAR[:50].strip())
    chat.page.keyboard.press("Escape")
    expect(chat.answer()).to_contain_text("Stopped.")
    tools.script.go_on()
    with chat.page.expect_request("**/v1/chat/completions") as sent:
        chat.button("Continue").click()
    chat.wait_until_answered()
    body = sent.value.post_data_json
    assert body["continue_final_message"]
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert body["messages"][-1]["content"] == FAR[:50]
    expect(tools.row("time: convert")).to_contain_text("result")
    expect(chat.answer().locator(".problem.bad")).to_have_count(0)


def test_a_whole_server_is_switched_and_without_tools_the_calls_are_told_as_a_chat(
    opened: Callable[..., _Tools],
) -> None:
    tools = opened()
    tools.panel.locator("> summary").click()
    whole = tools.group("time").get_by_role("switch", name="time")
    whole.check()
    expect(tools.panel.locator("> summary")).to_have_text("Tools of servers: 2 on")
    tools.panel.get_by_role("switch", name="convert").uncheck()
    expect(whole).not_to_be_checked()
    tools.asked("What time?")
    whole.check()
    whole.uncheck()
    expect(tools.panel.locator("> summary")).to_have_text("Tools of servers: off")
    with tools.chat.page.expect_request("**/v1/chat/completions") as sent:
        tools.chat.ask("And then?")
    tools.chat.wait_until_answered()
    _, step, result, said, _ = json.loads(sent.value.post_data)["messages"]
    assert step["content"] == "I look."
    assert step["tool_calls"][0]["function"] == {"name": "time__now", "arguments": '{"zone": "UTC"}'}
    assert result == {"role": "tool", "tool_call_id": step["tool_calls"][0]["id"], "content": "now got {'zone': 'UTC'}"}
    assert said == {"role": "assistant", "content": NOON}


def test_a_server_that_is_not_started_is_started_by_the_panel_and_a_dead_one_says_why(
    opened: Callable[..., _Tools],
) -> None:
    fake = servers()
    fake.idle.add("time")
    fake.dead.add("files")
    tools = opened(fake)
    expect(tools.panel).to_be_visible()
    assert fake.listed == []
    tools.panel.locator("> summary").click()
    expect(tools.group("files")).to_contain_text("Not available: the tool server files cannot be used: it is dead")
    expect(tools.group("time").get_by_role("switch", name="now")).to_be_enabled()
    assert grave_findings(tools.chat.page) == []
    fake.dead.clear()
    tools.group("files").get_by_role("button", name="Try again").click()
    expect(tools.group("files").get_by_role("switch", name="read")).to_be_enabled()
    tools.panel.get_by_role("switch", name="read").check()
    fake.dead.add("files")
    tools.asked("And then?")
    expect(tools.chat.answer()).to_contain_text("The tools of files cannot be used")
    expect(tools.chat.answer()).to_contain_text("Nothing more.")


def test_an_imported_conversation_switches_nothing_on(opened: Callable[..., _Tools], tmp_path: Any) -> None:
    tools = opened()
    tools.switch_on("read")
    tools.asked("What is in it?")
    expect(tools.card).to_be_visible()
    text = tools.chat.page.evaluate("Object.entries(localStorage).find(([key]) => key.includes('conversation'))[1]")
    file = tmp_path / "kept.json"
    kept = {**json.loads(text), "format": "cairn.conversation.v1", "id": "another", "title": "Another"}
    file.write_text(json.dumps(kept))
    tools.chat.page.locator("#import-file").set_input_files(file)
    tools.chat.page.get_by_role("button", name="Another", exact=True).click()
    expect(tools.row("files: read")).to_contain_text("no result")
    expect(tools.card).to_have_count(0)
    expect(tools.panel.locator("> summary")).to_have_text("Tools of servers: off")


def test_a_key_without_servers_sees_no_tools(serving: Serving, watch: Callable[..., Any]) -> None:
    fake = servers()
    service = serving(keyed_service(Client("root", admin=True), Client("user"), tool_servers=fake))
    page = watch(service.base_url).context.new_page()
    key = headers("user")["authorization"].removeprefix("Bearer ")
    page.add_init_script(f"sessionStorage.setItem('cairn.key', {json.dumps(key)})")
    with page.expect_response("**/v1/mcp/tools?start=false"):
        page.goto(f"{service.base_url}/chat")
    expect(page.locator("#server-tools")).to_be_hidden()
    assert fake.listed == []
