"""The page of the API."""

from typing import Any

from domain.client import Client
from tests.support.browser.browser import expect
from tests.support.http.servers.fake_service import FakeService, Serving, keyed_service


def test_every_route_is_there_and_opens(service: FakeService, watch: Any) -> None:
    page = watch(service.base_url).open(service.base_url + "/docs")
    expect(page.locator("main > div > details")).to_have_count(
        sum(len(methods) for methods in service.client.get("/openapi.json").json()["paths"].values())
    )
    rerank = page.locator("details", has_text="/v1/rerank").first
    rerank.locator("summary").first.click()
    expect(rerank.get_by_role("rowheader", name="documents", exact=True)).to_be_visible()
    expect(rerank).to_contain_text("computed once for all documents")
    expect(page.get_by_text(f"{service.base_url}/v1", exact=True)).to_be_visible()


def test_without_a_key_it_says_that_one_is_needed(serving: Serving, watch: Any) -> None:
    service = serving(keyed_service(Client("ann")))
    page = watch(service.base_url, allows=("401",)).open(service.base_url + "/docs")
    expect(page.get_by_role("status")).to_contain_text("needs a key")
