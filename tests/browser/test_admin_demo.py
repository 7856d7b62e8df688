"""The admin page of a server with the embedded model: true values, a request held in its prefill, readable by all."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import (
    formatted,
    get,
    open_admin,
    overview,
    requests,
    row_of,
    shows_figures,
    shows_tiers,
    tiers_of,
)
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.patience import PATIENCE_S

QUESTION = "Remember that the key of the red box is 4711. " * 8


@pytest.fixture(scope="module")
def client(demo: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo.base_url, timeout=PATIENCE_S) as client:
        for _ in range(2):
            assert ask(client, QUESTION).status_code == 200
        yield client


def ask(client: httpx.Client, text: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 8, "temperature": 0}
    return client.post("/v1/chat/completions", json=body)


def test_values_of_a_real_model_are_the_apis(demo: Any, client: httpx.Client, watch: Any) -> None:
    page = open_admin(watch(demo.base_url))
    shows_figures(page, client)
    told = overview(client)
    assert told["figures"]["ttft"]["p50_s"] > 0
    last = requests(client)["ended"][0]
    assert sum(last["reused"].values()) > 0
    row = row_of(page, "recent-table", last["id"])
    expect(row).to_contain_text(f"{formatted(page, 'count', last['prompt_tokens'])} tokens")
    expect(row).to_contain_text(formatted(page, "seconds", last["times"]["ttft_s"]))
    expect(row).to_contain_text(last["explanation"]["sentence"])
    expect(page.locator("#memory")).to_contain_text(formatted(page, "bytes", told["memory"]["held"]["weights"]))
    for entry in get(client, "/models")["data"]:
        model = row_of(page, "models-table", entry["standing"]["id"]).first
        expect(model).to_contain_text(formatted(page, "bytes", entry["bytes"]))
        for layers in entry.get("layout") or ():
            expect(model).to_contain_text(f"{layers['layers']} {layers['kind']}")

    assert client.post("/v1/cache/warm", json={"model": "cairn-demo", "prompt": QUESTION}).status_code == 200
    page.reload()
    shows_tiers(page, client)
    assert tiers_of(client)["store"]["stored_bytes"] > 0


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_the_page_fits_and_can_be_read_by_everybody(
    size: tuple[int, int], scheme: str, demo: Any, client: httpx.Client, watch: Any
) -> None:
    page = open_admin(watch(demo.base_url, size=size, scheme=scheme))
    page.locator("#recent-table tbody tr").first.get_by_role("button").click()
    expect(page.locator("tr.broke")).to_contain_text("Reused up to token")
    expect(page.locator("#models-table tbody tr").first).to_be_visible()
    assert is_as_wide_as_its_window(page)
    assert grave_findings(page) == []
    page.get_by_role("button", name="Clear everything").click()
    assert is_as_wide_as_its_window(page)
    assert grave_findings(page) == []
    page.keyboard.press("Escape")


def test_a_plot_is_read_with_the_keyboard(demo: Any, client: httpx.Client, watch: Any) -> None:
    page = open_admin(watch(demo.base_url))
    plot = page.get_by_role("img", name="Prompt tokens by origin")
    plot.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".plot .reading").first).to_contain_text("10 s ago: computed")
    expect(plot).to_have_attribute("aria-label", re.compile("10 s ago"))
