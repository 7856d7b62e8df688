"""What all pages have in common: they are quick, they fit, they can be read, and the theme is the reader's."""

import re
from typing import Any

import pytest

from interfaces.http.pages.routes import FOLDER
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.browser import expect
from tests.support.http.servers.fake_service import FakeService

PAGES = ("/admin", "/chat", "/docs")
MAX_PAGE_BYTES = 300_000


@pytest.mark.parametrize("path", PAGES)
def test_the_theme_is_chosen_and_stays(path: str, service: FakeService, watch: Any) -> None:
    profile = watch(service.base_url, scheme="light")
    page = profile.open(service.base_url + path)
    light = background(page)
    page.get_by_label("Theme").select_option("dark")
    dark = background(page)
    assert dark != light
    page.reload()
    expect(page.get_by_label("Theme")).to_have_value("dark")
    assert background(page) == dark
    page.get_by_label("Theme").select_option("system")
    assert background(page) == light


def background(page: Any) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_browser_without_light_dark_has_plain_colours(scheme: str, service: FakeService, watch: Any) -> None:
    def older(route: Any) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, body=answer.text().replace("light-dark(", "unheard-of("))

    page = watch(service.base_url, scheme=scheme).context.new_page()
    page.route("**/*.css", older)
    page.goto(service.base_url + "/admin")
    page.get_by_role("button", name="Clear everything").click()
    question = page.get_by_role("dialog")
    expect(question).to_be_visible()
    assert question.evaluate("it => getComputedStyle(it).backgroundColor") != "rgba(0, 0, 0, 0)"
    assert grave_findings(page) == []
    tokens = re.findall(r"(--[\w-]+): light-dark", (FOLDER / "design.css").read_text())
    value = "name => getComputedStyle(document.body).getPropertyValue(name)"
    assert tokens
    assert [name for name in tokens if "unheard-of" in page.evaluate(value, name)] == []


def test_colours_of_light_and_dark_are_tokens() -> None:
    lines = [line for file in FOLDER.rglob("*.css") for line in file.read_text().splitlines() if "light-dark(" in line]
    assert [line for line in lines if not line.startswith(("  --", "@supports"))] == []


@pytest.mark.parametrize("path", PAGES)
def test_what_the_keyboard_reaches_is_seen(path: str, service: FakeService, watch: Any) -> None:
    page = watch(service.base_url).open(service.base_url + path)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.matches('.skip-link:focus-visible')")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"


@pytest.mark.parametrize("path", PAGES)
def test_a_page_is_small_with_all_that_it_loads(path: str, service: FakeService, watch: Any) -> None:
    page = watch(service.base_url).context.new_page()
    loaded: list[Any] = []
    page.on("response", lambda answer: loaded.append(answer))
    page.goto(service.base_url + path)
    page.wait_for_load_state("networkidle")
    own = [answer for answer in loaded if "/pages/" in answer.url or answer.url.endswith(path)]
    files = {answer.url: len(answer.body()) for answer in own}
    assert len(files) > 2
    assert sum(files.values()) < MAX_PAGE_BYTES


def test_the_address_alone_leads_to_the_chat(service: FakeService, watch: Any) -> None:
    page = watch(service.base_url).open(service.base_url)
    assert page.url == service.base_url + "/chat"
