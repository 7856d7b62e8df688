"""PDF files on the chat page: attached, shown with their size, read by the server, kept, and refused in plain words."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.browser.accessibility import grave_findings
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.browser.chat_page import ChatPage
from tests.support.http.files import file_url, pdf

PAPER = pdf("A cairn is a pile of stones.", "It shows the way.")


def attach(chat: ChatPage, name: str, data: bytes) -> None:
    chat.page.locator("#files").set_input_files({"name": name, "mimeType": "application/pdf", "buffer": data})


def sent(chat: ChatPage, text: str) -> list[Any]:
    with chat.page.expect_request("**/v1/chat/completions") as asked:
        chat.ask(text)
    chat.wait_until_answered()
    return [message["content"] for message in json.loads(asked.value.post_data)["messages"]]


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_a_pdf_is_attached_read_and_kept(size: tuple[int, int], scheme: str, service: Any, watch: Any) -> None:
    chat = ChatPage(watch(service.base_url, size=size, scheme=scheme).open(f"{service.base_url}/chat"))
    attach(chat, "paper.pdf", PAPER)
    expect(chat.page.locator("#composer .file")).to_have_text(f"paper.pdf · {len(PAPER)} B")
    assert grave_findings(chat.page) == []
    [content] = sent(chat, "What is it?")
    file = {"type": "file", "file": {"filename": "paper.pdf", "file_data": file_url(PAPER)}}
    assert content == [file, {"type": "text", "text": "What is it?"}]
    expect(chat.answer()).not_to_be_empty()
    assert chat.answer().locator(".problem:visible").count() == 0
    chat.page.reload()
    expect(chat.thread.locator(".question .file")).to_contain_text("paper.pdf")
    assert sent(chat, "And now?")[0] == content
    assert grave_findings(chat.page) == []
    assert is_as_wide_as_its_window(chat.page)


def test_a_scan_is_refused_in_one_sentence_with_the_reason_behind_it(service: Any, watch: Callable[..., Any]) -> None:
    chat = ChatPage(watch(service.base_url, allows=["400 (Bad Request)"]).open(f"{service.base_url}/chat"))
    attach(chat, "scan.pdf", pdf(""))
    sent(chat, "What is it?")
    problem = chat.answer().locator(".problem")
    expect(problem).to_contain_text("An attached file cannot be read. Edit the question and remove it")
    problem.get_by_text("What the server said").click()
    expect(problem).to_contain_text("it has no text and may be a scan")


def test_a_pdf_that_is_too_large_is_not_attached(service: Any, watch: Callable[..., Any]) -> None:
    chat = ChatPage(watch(service.base_url).open(f"{service.base_url}/chat"))
    attach(chat, "long.pdf", PAPER + b" " * (10 << 20))
    expect(chat.page.locator("#notices")).to_contain_text("long.pdf is too large: a PDF file has at most 10 MiB.")
    expect(chat.page.locator("#composer .file")).to_have_count(0)
