"""The parts of the admin page for an operator: slowest requests, the log, reuse by model, and the hot tier alone."""

import logging
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from domain.ids import SequenceId
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import formatted, get, open_admin, overview, row_of, tiers_of
from tests.support.browser.browser import PHONE, WIDE, expect, hold_timers, is_as_wide_as_its_window
from tests.support.http.servers.fake_service import FakeService, Serving, fake_service

SIZES = pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
PROMPT = "A prompt of some length that goes on. " * 60


def ask(service: FakeService, prompt: str, **fields: Any) -> str:
    answer = service.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 2, **fields})
    assert answer.status_code == 200, answer.text
    id: str = answer.json()["id"]
    return id


def fits(page: Any) -> None:
    assert is_as_wide_as_its_window(page)
    assert grave_findings(page) == []


@SIZES
def test_the_slowest_first_tokens_say_where_the_time_went(size: tuple[int, int], serving: Serving, watch: Any) -> None:
    def takes_time(operation: str, _sequence: SequenceId | None, _count: int) -> None:
        if operation == "prefill":
            service.clock.advance(2)

    service = serving(fake_service(FakeOptions(hook=takes_time), reuses=True))
    slow = ask(service, PROMPT)
    ask(service, "a short one")
    page = open_admin(watch(service.base_url, size=size))
    page.get_by_label("Show").select_option("slowest")
    first = page.locator("#recent-table tbody tr").first
    expect(first).to_contain_text(slow)
    told = get(service.client, "/admin/api/requests?slowest=1")["slowest"][0]["times"]
    expect(first).to_contain_text(f"prefill {formatted(page, 'seconds', told['prefill_s'])}")
    expect(page.locator("#recent-most")).to_be_hidden()
    first.get_by_role("button").click()
    expect(page.locator("tr.broke")).to_contain_text("Queue")
    fits(page)
    page.get_by_label("Show").select_option("last")
    expect(page.locator("#recent-most")).to_be_visible()


@SIZES
def test_the_log_is_read_while_its_panel_is_open(size: tuple[int, int], service: FakeService, watch: Any) -> None:
    logger = logging.getLogger("cairn.test")
    logger.warning("the disk is nearly full")
    page = open_admin(watch(service.base_url, size=size))
    reads: list[str] = []
    page.on("request", lambda request: reads.append(request.url) if "/admin/api/logs" in request.url else None)
    page.locator("#logs summary").click()
    rows = page.locator("#logs-table tbody tr")
    expect(rows.first).to_contain_text("the disk is nearly full")
    logger.error("<b>it failed</b>")
    expect(rows.first).to_contain_text("<b>it failed</b>")
    expect(rows).to_have_count(2)
    fits(page)
    page.locator("#logs-level").select_option("error")
    expect(rows).to_have_count(1)
    page.locator("#logs-filter").fill("nothing like it")
    expect(page.locator("#logs-none")).to_have_text("No line matches.")
    assert "since=0" in reads[0]
    assert any("level=debug" in url and "since=0" not in url for url in reads)
    with page.expect_response("**/admin/api/logs?*"):
        pass
    page.locator("#logs summary").click()
    num_reads = len(reads)
    for _ in range(2):
        with page.expect_response("**/admin/api/overview"):
            pass
    assert len(reads) <= num_reads + 1  # one may have been on its way


@SIZES
def test_reuse_is_shown_by_model_where_there_are_several(
    size: tuple[int, int], service: FakeService, watch: Any
) -> None:
    page = open_admin(watch(service.base_url, size=size))
    rows = page.locator("#reuse-models tr")
    for model in ("fake-attention", "fake-hybrid"):
        ask(service, PROMPT, model=model)
    ask(service, PROMPT, model="fake-hybrid")
    service.wait_until_idle()
    expect(rows).to_have_count(6)
    minute = {one["model"]: one for one in overview(service.client)["figures"]["reuse"][0]["by_model"]}
    assert minute["fake-attention"]["hit_rate"]["hot"] == 0 < minute["fake-hybrid"]["hit_rate"]["hot"]
    for model, one in minute.items():
        cells = rows.filter(has_text=f"{model}, 1 min").locator("td")
        expect(cells.nth(1)).to_have_text(formatted(page, "percent", one["hit_rate"]["hot"]))
        expect(cells.nth(5)).to_have_text(formatted(page, "count", one["lookups"]))
    fits(page)


def test_the_hot_tier_alone_is_cleared(serving: Serving, watch: Any) -> None:
    service = serving(fake_service(reuses=True, store=MemoryBlockStore()))
    ask(service, PROMPT)
    used = tiers_of(service.client)["hot"]["used_bytes"]
    page = open_admin(watch(service.base_url))
    button = page.get_by_role("button", name="Clear the hot tier…")
    button.click()
    expect(page.get_by_role("dialog", name="Clear the hot tier?")).to_be_visible()
    hold_timers(page)
    page.get_by_role("button", name="Clear the hot tier", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Freed")).to_contain_text(formatted(page, "bytes", used))
    page.clock.resume()
    stats = get(service.client, "/v1/cache/stats")
    assert (stats["hot"]["used_bytes"], stats["queue"]["dropped"]) == (0, {})
    service.clock.advance(5)  # what was read of the tiers is kept for a second
    expect(button).to_be_disabled()
    expect(row_of(page, "stored-table", "fake-attention")).to_be_visible()
