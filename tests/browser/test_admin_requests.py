"""Requests on the admin page: how far they are, ending one, where their prefix broke, whatever somebody wrote in it."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from adapters.fake.options import FakeOptions
from application.settings import CacheSettings
from tests.support.browser.admin_page import formatted, open_admin, requests, row_of
from tests.support.browser.browser import expect
from tests.support.http.servers.fake_service import FakeService, Serving, fake_service
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate

PROMPT = "A prompt of some length that goes on. " * 20


@pytest.fixture
def clients() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as pool:
        yield pool


def asked(clients: ThreadPoolExecutor, service: FakeService, **fields: Any) -> Future[httpx.Response]:
    body = {"prompt": PROMPT, "max_tokens": 8, "ignore_eos": True, **fields}
    return clients.submit(httpx.post, service.base_url + "/v1/completions", json=body, timeout=PATIENCE_S)


def test_a_request_is_seen_over_a_reload_and_cancelled(
    serving: Serving, watch: Any, clients: ThreadPoolExecutor
) -> None:
    gate = Gate("decode", 3)
    service = serving(fake_service(FakeOptions(hook=gate)))
    answer = asked(clients, service, max_tokens=100)
    gate.wait_until_reached()
    (told,) = requests(service.client)["open"]
    page = open_admin(watch(service.base_url))
    page.reload()
    row = row_of(page, "open-table", told["id"])
    expect(row).to_contain_text("decodes")
    expect(row).to_contain_text(told["model"])

    cancel = row.get_by_role("button", name="Cancel")
    cancel.click()
    page.keyboard.press("Escape")
    expect(cancel).to_be_focused()
    cancel.click()
    expect(page.get_by_role("dialog")).to_contain_text(told["id"])
    expect(page.get_by_role("button", name="Keep")).to_be_focused()
    with page.expect_response("**/cancel"):  # or the toy ends the answer before the server knows
        page.get_by_role("button", name="Cancel the request").click()
    expect(row).to_contain_text("Cancelling")
    gate.open()
    expect(page.locator("#open-none")).to_be_visible()
    expect(row_of(page, "recent-table", told["id"])).to_contain_text("cancelled")
    assert requests(service.client)["ended"][0]["end"]["reason"] == "cancelled"
    assert "cancelled" in answer.result(PATIENCE_S).text


def test_prefill_is_shown_as_far_as_it_is(serving: Serving, watch: Any, clients: ThreadPoolExecutor) -> None:
    gate = Gate("prefill", 1)
    service = serving(fake_service(FakeOptions(hook=gate)))
    answer = asked(clients, service)
    gate.wait_until_reached()
    page = open_admin(watch(service.base_url))
    (told,) = requests(service.client)["open"]
    assert 0 < told["done_tokens"] < told["prompt_tokens"]
    row = row_of(page, "open-table", told["id"])
    expect(row.get_by_role("progressbar")).to_have_js_property("value", told["done_tokens"])
    expect(row.get_by_role("progressbar")).to_have_js_property("max", told["prompt_tokens"])
    done, prompt = (formatted(page, "count", told[name]) for name in ("done_tokens", "prompt_tokens"))
    expect(row).to_contain_text(f"{done} of {prompt} tokens")
    gate.open()
    assert answer.result(PATIENCE_S).status_code == 200
    recent = row_of(page, "recent-table", told["id"])
    expect(recent).to_contain_text(f"{prompt} tokens")
    expect(recent).to_contain_text(requests(service.client)["ended"][0]["explanation"]["sentence"])


@pytest.mark.parametrize("show_text", ["on", "off"])
def test_both_sides_of_a_break_are_text_and_nothing_else(show_text: str, serving: Serving, watch: Any) -> None:
    service = serving(fake_service(reuses=True, cache_settings=CacheSettings(show_text=show_text)))
    for told in ("<i>one</i>", "<b>two</b>"):
        body = {"prompt": PROMPT[:600] + told + PROMPT, "max_tokens": 1}
        assert service.client.post("/v1/completions", json=body).status_code == 200
    last = requests(service.client)["ended"][0]
    page = open_admin(watch(service.base_url))
    row_of(page, "recent-table", last["id"]).get_by_role("button").click()
    detail = page.locator("tr.broke")
    expect(detail).to_contain_text(last["explanation"]["sentence"])
    expect(detail).to_contain_text(formatted(page, "count", last["explanation"]["divergence"]["position"]))
    if show_text == "on":
        expect(detail.locator("mark").first).to_contain_text("b>two</b>")
        expect(detail.locator("mark").last).to_contain_text("i>one</i>")
    else:
        expect(detail).to_contain_text("cache.show_text")
        expect(detail).not_to_contain_text("b>two</b>")
    assert detail.locator("i, b").count() == 0
    row_of(page, "recent-table", last["id"]).first.get_by_role("button").click()
    expect(detail).to_have_count(0)


def test_recent_requests_are_found_by_what_they_were(service: FakeService, watch: Any) -> None:
    for number in range(30):
        service.client.post("/v1/completions", json={"prompt": f"{number}", "max_tokens": 1})
    ids = [one["id"] for one in requests(service.client)["ended"]]
    page = open_admin(watch(service.base_url))
    rows = page.locator("#recent-table tbody tr")
    expect(rows).to_have_count(25)
    page.get_by_placeholder("id, model, key, reason").fill(ids[-1])
    expect(page.locator("#recent-table").get_by_text(ids[-1], exact=True)).to_be_visible()
    page.get_by_placeholder("id, model, key, reason").fill("no such thing")
    expect(page.locator("#recent-none")).to_have_text("No request matches.")
