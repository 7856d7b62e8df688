"""The admin page in a watched browser, and what it must show: the API's values in its own formats."""

from collections.abc import Callable, Iterable, Iterator
from operator import contains
from operator import eq as is_
from typing import Any, TypeAlias

import httpx

from tests.support.browser.browser import expect
from tests.support.http.servers.fake_service import wait_until

Shown: TypeAlias = tuple[Any, Callable[[str, str], bool], str]
"""A place, and what its text is or contains."""


def open_admin(profile: Any) -> Any:
    """Returns the page, once it has shown an answer."""
    page = profile.open(profile.origin + "/admin")
    expect(page.locator("#content")).to_be_visible()
    return page


def overview(client: httpx.Client) -> dict[str, Any]:
    return get(client, "/admin/api/overview")


def requests(client: httpx.Client) -> dict[str, Any]:
    return get(client, "/admin/api/requests")


def get(client: httpx.Client, path: str) -> dict[str, Any]:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def formatted(page: Any, kind: str, value: float | None) -> str:
    """As `shared/format.js` writes it: tests of its own say that it writes well."""
    script = "async ([kind, value]) => (await import('/pages/shared/format.js'))[kind](value)"
    return str(page.evaluate(script, [kind, value]))


def row_of(page: Any, table: str, text: str) -> Any:
    """The row of a table that holds this text."""
    return page.locator(f"#{table} tbody tr").filter(has_text=text)


def shows_figures(page: Any, client: httpx.Client) -> None:
    """Of a server that rests."""

    def wanted() -> Iterator[Shown]:
        figures = overview(client)["figures"]
        for name in ("ttft", "itl"):
            yield page.locator(f"#tile-{name}"), is_, formatted(page, "seconds", figures[name]["p50_s"])
            more = page.locator(f"#tile-{name}-more")
            for quantile in ("p90", "p99"):
                yield more, contains, f"{quantile} {formatted(page, 'seconds', figures[name][f'{quantile}_s'])}"
        saved = figures["saved"]
        yield page.locator("#tile-saved"), is_, formatted(page, "seconds", sum(saved["last_hour_s"].values()))
        total = formatted(page, "seconds", sum(saved["since_start_s"].values()))
        yield page.locator("#tile-saved-more"), contains, f"{total} since the start"
        yield row_of(page, "reuse-table", "since the start").locator("td").nth(4), is_, total
        for index, window in enumerate(figures["reuse"]):
            cells = page.locator("#reuse-table tbody tr").nth(index).locator("td, th")
            rate = window["hit_rate"]
            shares = [None if rate is None else rate[tier] for tier in ("live", "hot", "store", "shared")]
            for at, share in enumerate(shares, 1):
                yield cells.nth(at), is_, "n/a" if share is None else formatted(page, "percent", share)
            yield cells.nth(6), is_, formatted(page, "count", window["lookups"])

    _comes_to_show(page, wanted)


def shows_tiers(page: Any, client: httpx.Client) -> None:
    def wanted() -> Iterator[Shown]:
        tiers = tiers_of(client)
        used = [(tiers["hot"], "used_bytes", "budget_bytes")]
        used += [(tiers["store"], "stored_bytes", "quota_bytes")] if tiers["store"] is not None else []
        for tier, held, limit in used:
            told = f"{formatted(page, 'bytes', tier[held])} of {formatted(page, 'bytes', tier[limit])}"
            yield page.locator("#tiers"), contains, told
        for model in (tiers["store"] or {"models": []})["models"]:
            row = row_of(page, "stored-table", model["model"]).first
            yield row, contains, formatted(page, "bytes", model["stored_bytes"])

    _comes_to_show(page, wanted)


def tiers_of(client: httpx.Client) -> dict[str, Any]:
    """Once they could be read."""
    found: list[Any] = []
    wait_until(lambda: found.append(overview(client)["tiers"]) or found[-1] is not None, "the tiers to be read")
    tiers: dict[str, Any] = found[-1]
    return tiers


def _comes_to_show(page: Any, wanted: Callable[[], Iterable[Shown]]) -> None:
    """Each place holds its words. The API is asked again each time: what it says goes on, by itself or because a window
    of time ends or a write comes to its end, and the page may be ahead of who asked before it."""
    missing: list[str] = []

    def is_shown() -> bool:
        page.wait_for_timeout(50)  # lets what the page asked come to it
        shown = [(" ".join(place.inner_text().split()), fits, words) for place, fits, words in wanted()]
        missing[:] = [f"{text!r} is not or has not {words!r}" for text, fits, words in shown if not fits(text, words)]
        return not missing

    try:
        wait_until(is_shown, "the page to show it")
    except AssertionError as error:
        raise AssertionError(f"{error}: {missing}") from None
