"""The parts around a conversation: whole titles, the question's width, buttons with names, the context, the search."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.browser.accessibility import grave_findings
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.browser.chat_page import ChatPage
from tests.support.browser.scripted_chat import ScriptedChat
from tests.support.http.servers.fake_service import FakeService, fake_service

TITLE = "Which of the two cairns on the northern path is older, and how is it known?"


@pytest.fixture(scope="module")
def server(browser: Any) -> Iterator[FakeService]:
    with fake_service(ScriptedChat({"weather": "It rains on the moor."}).options) as running:
        yield running


@pytest.fixture
def opened(server: FakeService, watch: Callable[..., Any]) -> Callable[..., ChatPage]:
    return lambda **options: ChatPage(watch(server.base_url, **options).open(f"{server.base_url}/chat"))


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_titles_are_whole_and_their_actions_fold_out(
    size: tuple[int, int], scheme: str, opened: Callable[..., ChatPage]
) -> None:
    chat = opened(size=size, scheme=scheme)
    chat.ask(TITLE)
    chat.wait_until_answered()
    if size == PHONE:
        chat.button("Conversations").click()
    title = chat.page.locator("#conversations .open")
    assert title.evaluate("one => one.scrollWidth <= one.clientWidth && one.scrollHeight <= one.clientHeight")
    expect(title).to_have_text(TITLE)
    more = chat.button(f"Actions for {TITLE}")
    expect(more).to_have_attribute("aria-expanded", "false")
    more.press("Enter")
    expect(more).to_have_attribute("aria-expanded", "true")
    expect(more).to_be_focused()
    expect(chat.button(f"Rename {TITLE}")).to_be_visible()
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)
    more.press("Enter")
    expect(chat.button(f"Rename {TITLE}")).to_have_count(0)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_the_question_has_the_width_and_its_buttons_are_named_icons(
    size: tuple[int, int], opened: Callable[..., ChatPage]
) -> None:
    chat = opened(size=size)
    box, form = (chat.page.locator(name).bounding_box() for name in ("#question", "#composer"))
    assert form["width"] - box["width"] <= 32
    for name in ("Attach images or files", "Send"):
        button = chat.button(name)
        expect(button).to_be_visible()
        expect(button).to_have_text("")
        assert button.bounding_box()["height"] >= (44 if size == PHONE else 36)
    chat.box.fill("What?")
    chat.button("Send").click()
    chat.wait_until_answered()
    expect(chat.answer().get_by_role("button", name="Copy")).to_have_text("")
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)


def test_the_meter_shows_the_tokens_of_the_conversation_against_the_context(
    server: FakeService, opened: Callable[..., ChatPage]
) -> None:
    chat = opened()
    meter = chat.page.locator("#context")
    expect(meter).to_be_hidden()
    usage = chat.asked("What?")
    models = server.client.get("/v1/models").json()["data"]
    length = next(model["cairn"]["context_length"] for model in models if model["cairn"])
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    expect(meter).to_have_text(f"{tokens:,} of {length:,} tokens")
    assert chat.page.get_by_label("Context used").evaluate("one => one.value") == pytest.approx(tokens / length)
    assert grave_findings(chat.page) == []
    chat.button("New conversation").click()
    expect(meter).to_be_hidden()


def test_conversations_are_found_by_words_of_title_question_and_answer(opened: Callable[..., ChatPage]) -> None:
    chat = opened()
    for question in ("How is the weather?", "How old are they?"):
        chat.ask(question)
        chat.wait_until_answered()
        chat.button("New conversation").click()
    titles = chat.page.locator("#conversations .open")
    search = chat.page.get_by_role("searchbox", name="Search in conversations")
    for query, found in (
        ("moor RAINS", ["How is the weather?"]),
        ("how", ["How old are they?", "How is the weather?"]),
        ("old", ["How old are they?"]),
    ):
        search.fill(query)
        expect(titles).to_have_text(found)
    search.fill("old moor")
    expect(chat.page.locator("#conversations")).to_have_text("No conversation has all these words.")
    assert grave_findings(chat.page) == []
    search.fill("")
    expect(titles).to_have_count(2)
