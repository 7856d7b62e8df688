"""Conversations on the chat page: kept in the browser, named, deleted after a question, taken along as a file."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser.accessibility import grave_findings
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.browser.chat_page import ChatPage
from tests.support.browser.scripted_chat import ELSE, ScriptedChat
from tests.support.http.servers.fake_service import FakeService, fake_service

LONG = "\n\n".join(f"Stone {number} of the cairn." for number in range(60))
HOSTILE = "<img src=x onerror=window.hurt=1>"
RICH = "<think>Hm.</think>A `cairn`:\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"


@pytest.fixture(scope="module")
def script() -> ScriptedChat:
    return ScriptedChat({"Long": LONG, "Rich": RICH})


@pytest.fixture(scope="module")
def server(browser: Any, script: ScriptedChat) -> Iterator[FakeService]:
    with fake_service(script.options) as running:
        yield running


@pytest.fixture
def opened(server: FakeService, script: ScriptedChat, watch: Callable[..., Any]) -> Iterator[Callable[..., ChatPage]]:
    yield lambda **options: ChatPage(watch(server.base_url, **options).open(f"{server.base_url}/chat"))
    script.go_on()


def actions(chat: ChatPage, title: str) -> None:
    """Unfolds what can be done with a conversation."""
    chat.button(f"Actions for {title}").click()


def test_conversations_are_kept_named_and_deleted(opened: Callable[..., ChatPage]) -> None:
    chat = opened()
    for question in ("First?", HOSTILE):
        chat.ask(question)
        chat.wait_until_answered()
        chat.button("New conversation").click()
    titles = chat.page.locator("#conversations .open")
    expect(titles).to_have_text([HOSTILE, "First?"])
    chat.page.reload()
    expect(titles).to_have_text([HOSTILE, "First?"])
    titles.last.click()
    expect(chat.thread.locator(".question")).to_contain_text("First?")
    actions(chat, "First?")
    chat.button("Rename First?").click()
    chat.page.get_by_role("dialog").get_by_label("Title").fill("Mine")
    chat.button("Rename").click()
    expect(titles).to_have_text([HOSTILE, "Mine"])
    actions(chat, HOSTILE)
    chat.button(f"Delete {HOSTILE}").click()
    chat.button("Cancel").click()
    expect(titles).to_have_text([HOSTILE, "Mine"])
    chat.button(f"Delete {HOSTILE}").click()
    chat.page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(titles).to_have_text(["Mine"])
    chat.page.reload()
    expect(titles).to_have_text(["Mine"])
    assert chat.page.evaluate("window.hurt") is None


def test_tabs_hear_of_each_other(server: FakeService, watch: Callable[..., Any]) -> None:
    profile = watch(server.base_url)
    one, other = (ChatPage(profile.open(f"{server.base_url}/chat")) for _ in range(2))
    one.ask("First?")
    one.wait_until_answered()
    other.page.locator("#conversations .open").click()
    expect(other.answer()).to_contain_text(ELSE)
    one.ask("And?")
    expect(other.thread.locator(".answer")).to_have_count(2)


def test_a_conversation_is_taken_along_as_a_file(opened: Callable[..., ChatPage]) -> None:
    chat = opened()
    chat.ask("What is it?")
    chat.wait_until_answered()
    actions(chat, "What is it?")
    with chat.page.expect_download() as markdown:
        chat.button("Export as Markdown What is it?").click()
    with chat.page.expect_download() as whole:
        chat.button("Export as JSON What is it?").click()
    assert markdown.value.suggested_filename == "what-is-it.md"
    assert ELSE in Path(markdown.value.path()).read_text()
    turns = json.loads(Path(whole.value.path()).read_text())["turns"]
    assert [turn["content"] for turn in turns] == ["What is it?", ELSE]


def test_a_full_browser_says_what_it_let_go(opened: Callable[..., ChatPage]) -> None:
    chat = opened()
    chat.ask("First?")
    chat.wait_until_answered()
    chat.button("New conversation").click()
    chat.page.evaluate(
        """() => {
            const write = Storage.prototype.setItem;
            Storage.prototype.setItem = function (name, text) {
                if (this.length > 0 && !(name in this)) throw new DOMException("full", "QuotaExceededError");
                write.call(this, name, text);
            };
        }"""
    )
    chat.ask("Second?")
    chat.wait_until_answered()
    expect(chat.page.locator("#notices")).to_contain_text("1 of the oldest conversations went")
    expect(chat.page.locator("#conversations .open")).to_have_text(["Second?"])


def test_the_end_is_followed_until_the_reader_scrolls_up(opened: Callable[..., ChatPage], script: ScriptedChat) -> None:
    chat = opened()
    scroller = chat.page.locator("#scroller")
    held = LONG[: len(LONG) // 2]
    script.hold_at(len(held))
    chat.ask("Long")
    script.wait_until_held()
    # All of it: what still came would take a reader who scrolls up by that back to the end.
    expect(chat.answer().locator(".markdown > p").last).to_have_text(held.rpartition("\n\n")[2])
    assert scroller.evaluate("one => one.scrollHeight - one.clientHeight - one.scrollTop") < 2
    scroller.hover()
    chat.page.mouse.wheel(0, -400)
    expect(chat.button("↓ To the end")).to_be_visible()
    chat.page.evaluate("window.written = [...document.querySelectorAll('.answer .markdown > p')].slice(0, -1)")
    place = scroller.evaluate("one => one.scrollTop")
    script.go_on()
    chat.wait_until_answered()
    assert scroller.evaluate("one => one.scrollTop") == place
    assert chat.page.evaluate("window.written.length > 20 && window.written.every(one => one.isConnected)")
    chat.button("↓ To the end").click()
    expect(chat.answer().get_by_text("Stone 59 of")).to_be_in_viewport()
    expect(chat.button("↓ To the end")).to_be_hidden()


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_a_conversation_fits_and_can_be_read_by_everybody(
    size: tuple[int, int], scheme: str, opened: Callable[..., ChatPage]
) -> None:
    chat = opened(size=size, scheme=scheme)
    chat.ask("Rich")
    chat.wait_until_answered()
    chat.page.get_by_text("Sampling, system prompt, tools").click()
    chat.answer().locator("summary").first.click()
    assert is_as_wide_as_its_window(chat.page)
    assert grave_findings(chat.page) == []
    if size == PHONE:
        chat.button("Conversations").click()
        chat.button("Close").click()
        chat.button("Conversations").click()
    actions(chat, "Rich")
    assert grave_findings(chat.page) == []
    chat.button("Delete Rich").click()
    assert grave_findings(chat.page) == []
