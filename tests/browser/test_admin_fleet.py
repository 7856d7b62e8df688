"""The admin page's panel of other servers; hidden where there are none."""

from typing import Any

import pytest

from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import open_admin, row_of
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, Serving, fake_service

GONE = "http://127.0.0.1:9"


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_other_servers_are_listed(size: tuple[int, int], theme: str, serving: Serving, watch: Any) -> None:
    with fake_service() as other:
        body = {"model": DEFAULT_MODEL, "prompt": "x", "max_tokens": 1}
        assert other.client.post("/v1/completions", json=body).status_code == 200
        one = serving(fake_service(peers=(other.base_url, GONE)))
        page = open_admin(watch(one.base_url, size=size, scheme=theme))
        answers = row_of(page, "fleet-table", other.base_url)
        expect(answers.locator(".badge")).to_have_text("ready")
        expect(answers).to_contain_text("9.9")
        gone = row_of(page, "fleet-table", GONE)
        expect(gone.locator(".badge")).to_have_text("no answer")
        expect(gone).to_contain_text("version –")
        assert is_as_wide_as_its_window(page)
        assert grave_findings(page) == []


def test_the_panel_is_hidden_without_other_servers(service: FakeService, watch: Any) -> None:
    page = open_admin(watch(service.base_url))
    with page.expect_response("**/admin/api/fleet"):
        page.reload()
    expect(page.locator("#fleet")).to_be_hidden()
