"""The admin page against the toy engine: it shows what the API says, asks before it clears, and says what is wrong."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from adapters.fake.options import FakeOptions
from application.settings import ServerSettings
from domain.client import Client
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import (
    get,
    open_admin,
    overview,
    requests,
    row_of,
    shows_figures,
    shows_tiers,
    tiers_of,
)
from tests.support.browser.browser import expect, hold_timers
from tests.support.http.servers.fake_service import KEY, FakeService, Serving, fake_service, headers, keyed_service
from tests.support.processes.gate import Gate

PROMPT = "Some prompt that is asked twice, and then reused. " * 20


def ask(service: FakeService, prompt: str = PROMPT) -> None:
    answer = service.client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4})
    assert answer.status_code == 200


def load(service: FakeService, **options: Any) -> None:
    """A server is ready when a model is loaded."""
    assert service.client.post("/models/load", json={"model": service.model}, **options).status_code == 200


def test_what_is_shown_is_what_the_api_says(service: FakeService, watch: Any) -> None:
    page = open_admin(watch(service.base_url))
    assert overview(service.client)["figures"]["reuse"][0]["hit_rate"] is None
    expect(page.locator("#reuse-table tbody tr").first).to_contain_text("n/a")
    ask(service)
    ask(service)
    service.wait_until_idle()
    shows_figures(page, service.client)
    shows_tiers(page, service.client)
    assert overview(service.client)["figures"]["reuse"][0]["hit_rate"]["hot"] > 0
    expect(page.locator("#state-text")).to_have_text("Ready")
    for entry in get(service.client, "/models")["data"]:
        state = entry["standing"]["state"].replace("absent", "not loaded")
        expect(row_of(page, "models-table", entry["standing"]["id"])).to_contain_text(state)


def test_clearing_asks_first(service: FakeService, watch: Any) -> None:
    ask(service)
    page = open_admin(watch(service.base_url))
    button = page.get_by_role("button", name="Clear everything")
    button.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Clear the whole prefix cache?")
    expect(dialog).to_be_visible()
    expect(page.get_by_role("button", name="Keep")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_be_hidden()
    expect(button).to_be_focused()
    assert tiers_of(service.client)["hot"]["blocks"] > 0

    button.click()
    hold_timers(page)
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Cleared")).to_be_visible()
    page.clock.resume()
    expect(button).to_be_focused()
    assert get(service.client, "/v1/cache/stats")["hot"]["blocks"] == 0
    service.clock.advance(5)  # what was read of the tiers is kept for a second
    expect(page.locator("#tiers")).to_contain_text("0 blocks, 0 snapshots")


def test_models_are_loaded_pinned_and_unloaded_by_hand(service: FakeService, watch: Any) -> None:
    page = open_admin(watch(service.base_url))
    row = row_of(page, "models-table", "fake-hybrid")
    row.get_by_role("button", name="Pin fake-hybrid", exact=True).click()
    expect(row.get_by_text("loaded", exact=True)).to_be_visible()
    expect(row.get_by_text("pinned")).to_be_visible()
    row.get_by_role("button", name="Unpin fake-hybrid").click()
    expect(row.get_by_text("pinned")).to_be_hidden()
    row.get_by_role("button", name="Unload fake-hybrid").click()
    page.get_by_role("button", name="Unload", exact=True).click()
    expect(row).to_contain_text("not loaded")


def test_settings_show_what_somebody_chose(service: FakeService, watch: Any) -> None:
    told = get(service.client, "/admin/api/settings")["data"]
    chosen = [one for one in told if one["origin"] != "default"]
    page = open_admin(watch(service.base_url))
    rows = page.locator("#settings-table tbody tr")
    expect(rows).to_have_count(len(chosen))
    page.get_by_label("Defaults too").check()
    expect(rows).to_have_count(len(told))


def test_a_key_is_asked_for_kept_and_forgotten(serving: Serving, watch: Any) -> None:
    service = serving(keyed_service(Client("ann"), Client("root", admin=True)))
    load(service, headers=headers("root"))
    profile = watch(service.base_url, allows=("401", "403"))
    page = profile.open(service.base_url + "/admin")
    state = page.locator("#state-text")
    expect(state).to_have_text("This server needs a key")
    expect(page.locator("#key")).to_be_focused()
    assert grave_findings(page) == []
    for key, told in (("nobody's", "not valid"), (f"ann{KEY}", "not an admin's")):
        page.locator("#key").fill(key)
        page.keyboard.press("Enter")
        expect(state).to_contain_text(told)
        expect(page.locator("#content")).to_be_hidden()
    page.locator("#key").fill(f"root{KEY}")
    page.keyboard.press("Enter")
    expect(state).to_have_text("Ready")
    page.reload()
    expect(state).to_have_text("Ready")
    assert KEY not in page.content()
    page.get_by_role("button", name="Forget the key").click()
    expect(state).to_have_text("This server needs a key")
    expect(page.locator("#content")).to_be_hidden()


def test_a_key_may_be_any_that_a_header_carries(serving: Serving, watch: Any) -> None:
    service = serving(fake_service(settings=ServerSettings(port=0, api_key="a pass phrase")))
    page = watch(service.base_url, allows=("401",)).open(service.base_url + "/admin")
    page.locator("#key").fill("kéy")
    page.keyboard.press("Enter")
    expect(page.locator("#key-why")).to_contain_text("only plain characters")
    page.locator("#key").fill("a pass phrase")
    page.keyboard.press("Enter")
    expect(page.locator("#content")).to_be_visible()


def test_a_server_that_is_gone_is_said_so_and_found_again(service: FakeService, watch: Any) -> None:
    load(service)
    profile = watch(service.base_url, allows=("ERR_FAILED",))
    page = open_admin(profile)
    page.route("**/admin/api/**", lambda route: route.abort())
    expect(page.locator("#state-text")).to_contain_text("does not answer")
    expect(page.locator("#state-detail")).to_contain_text("Trying again in")
    expect(page).to_have_title("Cairn: no answer")
    expect(page.get_by_role("button", name="Try now")).to_be_visible()
    page.unroute("**/admin/api/**")
    page.locator("#retry").dispatch_event("click")  # it is gone already where the page was quicker to try by itself
    expect(page.locator("#state-text")).to_have_text("Ready")


def test_an_engine_that_stands_still_is_said_so(serving: Serving, watch: Any) -> None:
    gate = Gate("decode", 1)
    service = serving(fake_service(FakeOptions(hook=gate)))
    with ThreadPoolExecutor() as clients:
        answer = clients.submit(ask, service)
        gate.wait_until_reached()
        page = open_admin(watch(service.base_url))
        expect(page.locator("#state-text")).to_have_text("Ready")
        service.clock.advance(600)
        expect(page.locator("#state-text")).to_contain_text("Not ready: the engine is stuck: decode")
        expect(page.locator("#state-detail")).to_contain_text(requests(service.client)["open"][0]["id"])
        expect(page).to_have_title("Cairn: NOT READY")
        gate.open()
        answer.result()
        expect(page.locator("#state-text")).to_have_text("Ready")


def test_of_a_whole_batch_that_stands_still_some_are_named(service: FakeService, watch: Any) -> None:
    told = overview(service.client)
    told["health"]["engine"] |= {"status": "stuck", "requests": [f"request-{number}" for number in range(64)]}
    page = watch(service.base_url).context.new_page()
    page.route("**/admin/api/overview", lambda route: route.fulfill(json=told))
    page.goto(service.base_url + "/admin")
    detail = page.locator("#state-detail")
    expect(detail).to_contain_text("request-2 · and 61 more requests · the log has")
    expect(detail).not_to_contain_text("request-3")


def test_what_could_not_be_counted_is_said(service: FakeService, watch: Any) -> None:
    told = overview(service.client)
    page = watch(service.base_url).context.new_page()
    page.route("**/admin/api/overview", lambda route: route.fulfill(json=told))
    page.goto(service.base_url + "/admin")
    expect(page.locator("#content")).to_be_visible()
    expect(page.locator("#figures-problem")).to_be_hidden()
    told["event_failures"] = {"FirstToken": 1200}
    expect(page.locator("#figures-problem")).to_contain_text("FirstToken 1,200")


def test_nothing_is_asked_while_nobody_looks(service: FakeService, watch: Any) -> None:
    load(service)
    profile = watch(service.base_url)
    page = profile.context.new_page()
    page.clock.install()
    page.goto(service.base_url + "/admin")
    expect(page.locator("#state-text")).to_have_text("Ready")
    looks(page, is_hidden=True)
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(600_000)
    assert asked == []
    with page.expect_request("**/admin/api/overview"):
        looks(page, is_hidden=False)
    with page.expect_request("**/admin/api/overview"):
        page.clock.run_for(3_000)


def looks(page: Any, *, is_hidden: bool) -> None:
    page.evaluate(
        """(isHidden) => {
            Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        is_hidden,
    )


def test_numbers_are_written_as_people_read_them(service: FakeService, watch: Any) -> None:
    page = watch(service.base_url).open(service.base_url + "/admin")
    wanted = {
        "bytes": {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 150 << 20: "150 MiB", 1 << 40: "1.0 TiB"},
        "seconds": {
            0: "0 s",
            0.00042: "0.42 ms",
            0.0042: "4.2 ms",
            0.042: "42 ms",
            0.9996: "1.0 s",
            75: "1 min 15 s",
            -2: "-2.0 s",
        },
        "count": {0: "0", 12345: "12,345"},
        "short": {0: "0", 9.96: "10", 999: "999", 12345: "12.3k", 2e9: "2G"},
        "percent": {0: "0 %", 0.4217: "42.2 %", 1: "100 %"},
    }
    script = """async (wanted) => {
        const format = await import("/pages/shared/format.js");
        return Object.entries(wanted).map(([kind, values]) =>
            [kind, Object.keys(values).map((value) => format[kind](Number(value)))]);
    }"""
    plain = {kind: {str(value): text for value, text in values.items()} for kind, values in wanted.items()}
    shown = dict(page.evaluate(script, plain))
    for kind, values in wanted.items():
        assert sorted(shown[kind]) == sorted(values.values())
    unknown = (
        "async () => { const f = await import('/pages/shared/format.js'); return [f.bytes(null), f.seconds(NaN)]; }"
    )
    assert page.evaluate(unknown) == ["–", "–"]
