"""The admin page in a watched browser, and what it must show: the API's values in its own formats."""

from typing import Any

import httpx

from tests.support.browser import expect


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


def shows_figures(page: Any, told: dict[str, Any]) -> None:
    """`told`: the overview, of a server that rests."""
    figures = told["figures"]
    for name in ("ttft", "itl"):
        expect(page.locator(f"#tile-{name}")).to_have_text(formatted(page, "seconds", figures[name]["p50_s"]))
        more = page.locator(f"#tile-{name}-more")
        for quantile in ("p90", "p99"):
            expect(more).to_contain_text(f"{quantile} {formatted(page, 'seconds', figures[name][f'{quantile}_s'])}")
    for index, window in enumerate(figures["reuse"]):
        cells = page.locator("#reuse-table tbody tr").nth(index).locator("td, th")
        rate = window["hit_rate"]
        shares = [None] * 3 if rate is None else [rate["live"], rate["hot"], rate["store"]]
        told_shares = ["n/a" if share is None else formatted(page, "percent", share) for share in shares]
        for at, share in enumerate(told_shares, 1):
            expect(cells.nth(at)).to_have_text(share)
        expect(cells.nth(5)).to_have_text(formatted(page, "count", window["lookups"]))


def shows_tiers(page: Any, tiers: dict[str, Any]) -> None:
    cards = page.locator("#tiers")
    used = [(tiers["hot"], "used_bytes", "budget_bytes")]
    used += [(tiers["store"], "stored_bytes", "quota_bytes")] if tiers["store"] is not None else []
    for tier, held, limit in used:
        expect(cards).to_contain_text(
            f"{formatted(page, 'bytes', tier[held])} of {formatted(page, 'bytes', tier[limit])}"
        )
    for model in (tiers["store"] or {"models": []})["models"]:
        row = row_of(page, "stored-table", model["model"]).first
        expect(row).to_contain_text(formatted(page, "bytes", model["stored_bytes"]))


__all__ = ("formatted", "get", "open_admin", "overview", "requests", "row_of", "shows_figures", "shows_tiers")
