"""The chat page as a reader uses it."""

import json
from typing import Any

from tests.support.browser.browser import expect


class ChatPage:
    """`page`: playwright's, at /chat."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.thread = page.locator("#thread")
        self.box = page.get_by_role("textbox", name="Question", exact=True)

    def ask(self, text: str) -> None:
        self.box.fill(text)
        self.box.press("Enter")

    def button(self, name: str) -> Any:
        return self.page.get_by_role("button", name=name, exact=True)

    def answer(self) -> Any:
        """The last one."""
        return self.thread.locator(".answer").last

    def wait_until_answered(self) -> None:
        expect(self.answer()).to_have_attribute("aria-busy", "false")

    def asked(self, text: str) -> dict[str, Any]:
        """Ask, wait for the whole answer, and give the usage that the server told with it."""
        with self.page.expect_response("**/v1/chat/completions") as response:
            self.ask(text)
        self.wait_until_answered()
        return usage_of(response.value)

    def figure(self, name: str) -> str:
        return str(self.answer().locator(f'[data-figure="{name}"]').inner_text())


def usage_of(response: Any) -> dict[str, Any]:
    events = [line.removeprefix("data: ") for line in response.text().splitlines() if line.startswith("data: {")]
    usage = json.loads(events[-1])["usage"]
    assert isinstance(usage, dict)
    return usage
