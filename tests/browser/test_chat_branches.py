"""Answers beside each other, system prompts under a name, files of text, and all conversations as one file."""

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

LOOKS = [(WIDE, "light"), (PHONE, "dark")]


@pytest.fixture(scope="module")
def server(browser: Any) -> Iterator[FakeService]:
    with fake_service(ScriptedChat({"Why?": "They mark paths."}).options) as running:
        yield running


@pytest.fixture
def opened(server: FakeService, watch: Callable[..., Any]) -> Callable[..., ChatPage]:
    return lambda **options: ChatPage(watch(server.base_url, **options).open(f"{server.base_url}/chat"))


def asked(chat: ChatPage, text: str) -> list[Any]:
    """The contents that a question sends."""
    with chat.page.expect_request("**/v1/chat/completions") as request:
        chat.ask(text)
    chat.wait_until_answered()
    return [message["content"] for message in request.value.post_data_json["messages"]]


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_an_earlier_answer_and_an_edited_question_stay_behind_arrows(
    size: tuple[int, int], scheme: str, opened: Callable[..., ChatPage]
) -> None:
    chat = opened(size=size, scheme=scheme)
    questions = chat.thread.locator(".question > .plain")
    asked(chat, "What?")
    expect(chat.answer().locator(".branches")).to_be_hidden()
    chat.button("Regenerate").click()
    chat.wait_until_answered()
    switch = chat.answer().locator(".branches")
    expect(switch).to_have_text("2 of 2")
    expect(chat.button("Later answer")).to_be_disabled()
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)
    asked(chat, "And then?")
    chat.thread.get_by_role("button", name="Earlier answer").first.press("Enter")
    expect(chat.thread.locator(".answer")).to_have_count(1)
    expect(switch).to_have_text("1 of 2")
    expect(chat.button("Later answer")).to_be_focused()
    chat.page.reload()
    expect(switch).to_have_text("1 of 2")
    chat.button("Later answer").click()
    expect(questions).to_have_text(["What?", "And then?"])

    chat.thread.get_by_role("button", name="Edit").first.click()
    chat.page.get_by_role("textbox", name="Edit the question").fill("Why?")
    chat.button("Ask again").click()
    expect(chat.answer()).to_contain_text("They mark paths.")
    chat.wait_until_answered()
    chat.button("Earlier question").click()
    expect(questions).to_have_text(["What?", "And then?"])
    expect(chat.answer()).to_contain_text(ELSE)


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_a_system_prompt_is_kept_as_a_preset(
    size: tuple[int, int], scheme: str, opened: Callable[..., ChatPage]
) -> None:
    chat = opened(size=size, scheme=scheme)
    settings = chat.page.get_by_text("Sampling, system prompt, tools")
    settings.click()
    prompt, preset = chat.page.get_by_label("System prompt"), chat.page.get_by_label("Preset", exact=True)
    expect(chat.button("Save as preset")).to_be_disabled()
    prompt.fill("Be brief.")
    chat.button("Save as preset").click()
    chat.page.get_by_role("dialog").get_by_label("Name").fill("Brief")
    chat.button("Save").click()
    expect(preset).to_have_value("Brief")
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)
    prompt.fill("")
    expect(preset).to_have_value("")
    chat.page.reload()
    settings.click()
    preset.select_option("Brief")
    expect(prompt).to_have_value("Be brief.")
    settings.click()
    assert asked(chat, "What?") == ["Be brief.", "What?"]
    settings.click()
    chat.button("Delete preset").click()
    expect(preset.locator("option")).to_have_text(["None"])
    expect(prompt).to_have_value("Be brief.")


def test_all_conversations_go_into_a_file_and_come_out_of_it(
    server: FakeService, opened: Callable[..., ChatPage], tmp_path: Path
) -> None:
    chat = opened()
    for question in ("What?", "Why?"):
        asked(chat, question)
        chat.button("New conversation").click()
    with chat.page.expect_download() as download:
        chat.button("Export all").click()
    file = tmp_path / download.value.suggested_filename
    download.value.save_as(file)
    assert len(json.loads(file.read_text())["conversations"]) == 2

    other = opened()
    pick, notices = other.page.locator("#import-file"), other.page.locator("#notices")
    with other.page.expect_file_chooser():
        other.button("Import").click()
    pick.set_input_files(file)
    expect(notices).to_contain_text("2 conversations were imported.")
    titles = other.page.locator("#conversations .open")
    expect(titles).to_have_text(["Why?", "What?"])
    pick.set_input_files(file)
    expect(notices).to_contain_text("0 conversations were imported. 2 were here already.")
    pick.set_input_files({"name": "x.json", "mimeType": "application/json", "buffer": b"{}"})
    expect(notices).to_contain_text("This file has no conversations that this page exported.")
    other.page.reload()
    titles.last.click()
    expect(other.answer()).to_contain_text(ELSE)


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_text_files_are_attached_shown_and_told_with_their_names(
    size: tuple[int, int], scheme: str, opened: Callable[..., ChatPage]
) -> None:
    chat = opened(size=size, scheme=scheme)
    files = [
        ("notes.md", "text/markdown", b"# Cairns\n" + b"A line. " * 40),
        ("data.bin", "application/octet-stream", b"\x00\xff"),
        ("drop.csv", "text/csv", b"a,b"),
    ]
    payload = [{"name": name, "mimeType": kind, "buffer": data} for name, kind, data in files]
    notices = chat.page.locator("#notices")
    for one, told in ((payload[1], "data.bin is neither"), (payload[0], "")):
        chat.page.locator("#files").set_input_files(one)
        expect(notices).to_contain_text(told)
    chat.page.locator("#files").set_input_files(payload[2])
    expect(chat.page.locator("#composer .file")).to_have_count(2)
    assert grave_findings(chat.page) == []
    chat.button("Remove drop.csv").click()
    content = files[0][2].decode()
    assert asked(chat, "What?") == [f"File notes.md:\n\n```\n{content}\n```\n\nWhat?"]
    expect(chat.page.locator("#composer .file")).to_have_count(0)
    chat.page.reload()
    shown = chat.thread.locator(".question .file")
    expect(shown.locator("pre")).to_be_hidden()
    shown.locator("summary").click()
    expect(shown.locator("pre")).to_contain_text("# Cairns")
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)


def test_a_file_that_is_too_large_is_not_attached(opened: Callable[..., ChatPage]) -> None:
    chat = opened()
    payload = {"name": "long.txt", "mimeType": "text/plain", "buffer": b"x" * (256 * 1024 + 1)}
    chat.page.locator("#files").set_input_files(payload)
    expect(chat.page.locator("#notices")).to_contain_text("long.txt is too large: a text file has at most 256 KiB.")
    expect(chat.page.locator("#composer .file")).to_have_count(0)
