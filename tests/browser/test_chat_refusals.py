"""What the server refuses, the chat page tells in the server's words: keys, limits, bad settings."""

from collections.abc import Callable
from typing import Any

from domain.client import Client
from tests.support.browser.browser import expect
from tests.support.browser.chat_page import ChatPage
from tests.support.http.servers.fake_service import KEY, FakeService, Serving, keyed_service


def test_a_key_is_asked_for_and_kept_in_the_tab_only(serving: Serving, watch: Callable[..., Any]) -> None:
    server = serving(keyed_service(Client("ann", requests_per_minute=3)))
    profile = watch(server.base_url, allows=("401", "429"))
    chat = ChatPage(profile.open(f"{server.base_url}/chat"))
    dialog = chat.page.get_by_role("dialog", name="This server asks for a key")
    dialog.get_by_role("button", name="Cancel").click()
    chat.ask("What?")
    expect(chat.answer().locator(".problem")).to_contain_text("an API key is required")
    chat.answer().get_by_role("button", name="Enter key").click()
    dialog.get_by_label("API key").fill(f"ann{KEY}")
    dialog.get_by_role("button", name="Use it").click()
    expect(chat.page.get_by_label("Model")).to_contain_text("fake-attention")
    chat.button("Try again").click()
    expect(chat.answer().locator(".problem")).to_be_hidden()
    chat.wait_until_answered()
    chat.ask("And now?")
    expect(chat.answer().locator(".problem")).to_contain_text("try again in 20s")
    kept = chat.page.evaluate("JSON.stringify(localStorage) + document.cookie + location.href")
    assert KEY not in kept
    other = ChatPage(profile.open(f"{server.base_url}/chat"))
    expect(other.page.get_by_role("dialog", name="This server asks for a key")).to_be_visible()


def test_a_key_that_no_header_carries_is_not_kept(serving: Serving, watch: Callable[..., Any]) -> None:
    server = serving(keyed_service(Client("ann")))
    page = watch(server.base_url, allows=("401",)).open(f"{server.base_url}/chat")
    dialog = page.get_by_role("dialog", name="This server asks for a key")
    dialog.get_by_label("API key").fill("kéy")
    dialog.get_by_role("button", name="Use it").click()
    expect(page.locator("#notices")).to_contain_text("only plain characters")
    page.get_by_role("button", name="Enter key").click()
    dialog.get_by_label("API key").fill(f"ann{KEY}")
    dialog.get_by_role("button", name="Use it").click()
    expect(page.get_by_label("Model")).to_contain_text("fake-attention")
    expect(page.locator("#notices")).to_be_empty()


def test_a_bad_setting_is_reported_with_its_name_and_mended(service: FakeService, watch: Callable[..., Any]) -> None:
    chat = ChatPage(watch(service.base_url, allows=("400",)).open(f"{service.base_url}/chat"))
    chat.page.get_by_text("Sampling, system prompt, tools").click()
    tools = chat.page.get_by_label("Tools, as a JSON list")
    tools.fill('[{"type": "function"}]')
    chat.ask("What?")
    expect(chat.answer().locator(".problem")).to_contain_text("tools[0]")
    tools.fill("")
    chat.button("Try again").click()
    expect(chat.answer().locator(".problem")).to_be_hidden()
    chat.wait_until_answered()


def test_a_server_that_is_gone_is_reported_and_tried_again(service: FakeService, watch: Callable[..., Any]) -> None:
    chat = ChatPage(watch(service.base_url, allows=("ERR_FAILED",)).open(f"{service.base_url}/chat"))
    chat.page.route("**/v1/chat/completions", lambda route: route.abort(), times=1)
    chat.ask("What?")
    expect(chat.answer().locator(".problem")).to_have_text(
        "The server could not be reached. Check that it runs, then try again."
    )
    chat.button("Try again").click()
    chat.wait_until_answered()
    expect(chat.answer().locator(".problem")).to_be_hidden()
