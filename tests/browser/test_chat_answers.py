"""Answers on the chat page: they stream, can be stopped, made anew and gone on with, and nothing that came is lost."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.browser.browser import expect
from tests.support.browser.chat_page import ChatPage
from tests.support.browser.scripted_chat import ELSE, ScriptedChat
from tests.support.http.servers.fake_service import FakeService, fake_service

THOUGHT = "<think>Stones, *surely*.</think>They mark **paths**."
CALL = 'I look.<call>look {"place": "cairn"}</call>'
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def script() -> ScriptedChat:
    return ScriptedChat({"Why?": THOUGHT, "Where?": CALL})


@pytest.fixture(scope="module")
def server(browser: Any, script: ScriptedChat) -> Iterator[FakeService]:
    with fake_service(script.options, reuses=True) as running:
        yield running


@pytest.fixture
def chat(server: FakeService, script: ScriptedChat, watch: Callable[..., Any]) -> Iterator[ChatPage]:
    yield ChatPage(watch(server.base_url).open(f"{server.base_url}/chat"))
    script.go_on()  # a test that failed may have left it standing


def test_an_answer_streams_and_tells_what_it_took_as_the_server_does(chat: ChatPage, script: ScriptedChat) -> None:
    script.hold_at(len("A cairn"))
    with chat.page.expect_response("**/v1/chat/completions"):
        chat.ask("What?")
    script.wait_until_held()
    expect(chat.answer().locator(".markdown").last).to_have_text("A cairn")
    expect(chat.answer()).to_have_attribute("aria-busy", "true")
    expect(chat.button("Send")).to_be_hidden()
    script.go_on()
    expect(chat.answer().locator(".markdown").last).to_have_text(ELSE)
    chat.wait_until_answered()
    expect(chat.page.locator("#announcer")).to_have_text(f"Answer: {ELSE}")
    assert "tokens/s" in chat.figure("speed")
    usage = chat.asked("And then?")
    reused = usage["prompt_tokens_details"]["cached_tokens"]
    assert reused > 0
    assert chat.figure("reused") == f"{reused} from memory"
    assert chat.figure("prompt") == f"{usage['prompt_tokens']} tokens"
    assert chat.figure("answer") == f"{usage['completion_tokens']} tokens"
    assert chat.figure("first token").endswith("s")


def test_a_stopped_answer_stays_and_is_gone_on_with(chat: ChatPage, script: ScriptedChat, server: FakeService) -> None:
    script.hold_at(len("A cairn"))
    chat.ask("What?")
    script.wait_until_held()
    expect(chat.answer().locator(".markdown").last).to_have_text("A cairn")
    chat.page.keyboard.press("Escape")
    expect(chat.answer().get_by_text("Stopped.")).to_be_visible()
    server.wait_until(lambda: server.requests.num_read == 0, "the server to notice that its client left")
    script.go_on()
    server.wait_until_idle()
    assert server.events.of("RequestEnded")[-1].reason == "cancelled"
    expect(chat.answer().locator(".markdown").last).to_have_text("A cairn")
    with chat.page.expect_request("**/v1/chat/completions") as asked:
        chat.button("Continue").click()
    chat.wait_until_answered()
    body = asked.value.post_data_json
    assert body["continue_final_message"]
    assert body["messages"][-1] == {"role": "assistant", "content": "A cairn"}
    expect(chat.answer().locator(".markdown").last).to_have_text(f"A cairn{ELSE}")
    expect(chat.thread.locator(".answer")).to_have_count(1)


def test_a_page_that_is_left_in_mid_stream_keeps_what_came(chat: ChatPage, script: ScriptedChat) -> None:
    script.hold_at(len("A cairn"))
    chat.ask("What?")
    script.wait_until_held()
    expect(chat.answer().locator(".markdown").last).to_have_text("A cairn")
    chat.page.reload()
    expect(chat.thread.locator(".question")).to_contain_text("What?")
    expect(chat.answer().locator(".markdown").last).to_have_text("A cairn")
    expect(chat.answer().locator(".problem.bad")).to_be_visible()
    expect(chat.button("Continue")).to_be_visible()


def test_a_failing_stream_keeps_what_came_and_says_why(chat: ChatPage, script: ScriptedChat) -> None:
    script.fail_at(len("A cairn"))
    chat.ask("What?")
    chat.wait_until_answered()
    expect(chat.answer().locator(".markdown").last).to_have_text("A cairn")
    expect(chat.answer().locator(".problem")).to_contain_text("made to fail")
    chat.button("Regenerate").click()
    expect(chat.answer().locator(".markdown").last).to_have_text(ELSE)


def test_a_question_is_written_by_keyboard_and_edited_and_all_after_it_goes(chat: ChatPage) -> None:
    chat.page.keyboard.type("What")  # nothing has the focus
    chat.box.press("Shift+Enter")
    chat.box.press_sequentially("is it?")
    chat.box.press("Enter")
    expect(chat.thread.locator(".question .plain")).to_have_text("What\nis it?")
    chat.wait_until_answered()
    chat.ask("And?")
    expect(chat.thread.locator(".answer")).to_have_count(2)
    chat.wait_until_answered()
    chat.thread.get_by_role("button", name="Edit").first.click()
    chat.page.get_by_role("textbox", name="Edit the question").fill("Why?")
    chat.button("Ask again").click()
    expect(chat.answer().locator(".markdown").last).to_have_text("They mark paths.")
    expect(chat.thread.locator(".question")).to_have_count(1)


def test_reasoning_and_tool_calls_are_folded(chat: ChatPage) -> None:
    chat.page.get_by_text("Sampling, system prompt, tools").click()
    chat.page.get_by_label("Tools, as a JSON list").fill(json.dumps(TOOLS))
    chat.ask("Why?")
    chat.wait_until_answered()
    reasoning = chat.answer().locator("details.reasoning")
    expect(reasoning.get_by_text("Stones, surely.")).to_be_hidden()
    reasoning.locator("summary").click()
    expect(reasoning.locator("em")).to_have_text("surely")
    expect(chat.answer().locator("strong")).to_have_text("paths")
    chat.ask("Where?")
    expect(chat.answer()).to_contain_text("I look.")
    chat.wait_until_answered()
    call = chat.answer().locator("details.call")
    expect(call.locator("pre")).to_be_hidden()
    call.get_by_text("Tool call: look").click()
    assert json.loads(call.locator("pre").inner_text()) == {"place": "cairn"}


def test_settings_reach_the_server_and_stay_with_the_conversation(chat: ChatPage) -> None:
    chat.page.get_by_text("Sampling, system prompt, tools").click()
    for label, value in (("System prompt", "Be brief."), ("Temperature", "0.5"), ("Top p", "0.9"), ("Seed", "7")):
        chat.page.get_by_label(label).fill(value)
    chat.page.get_by_label("Max tokens").fill("5")
    with chat.page.expect_request("**/v1/chat/completions") as asked:
        chat.ask("What?")
    body = asked.value.post_data_json
    assert body["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What?"}]
    assert {name: body[name] for name in ("temperature", "top_p", "max_tokens", "seed")} == {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_tokens": 5,
        "seed": 7,
    }
    expect(chat.answer().locator(".problem")).to_contain_text("greatest length")
    chat.page.reload()
    chat.page.get_by_text("Sampling, system prompt, tools").click()
    expect(chat.page.get_by_label("Temperature")).to_have_value("0.5")
