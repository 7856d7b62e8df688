"""Settings and keys from the page: a change is shown as lines of the file, applied, seen, and undone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from adapters.config.loader import Flag, load_settings
from adapters.system.key_file import with_key
from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.client import Client, key_digest
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import get, open_admin, row_of
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.http.servers.live_service import FAKE, live_service

TEXT = '[server]\nlog_level = "warning"  # quiet\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "config.toml"
    found.write_text(TEXT)
    return found


@pytest.fixture
def origin(browser: Any, file: Path) -> Iterator[str]:
    flags = {
        "server.port": Flag("--port", 0),
        "engine.backend": Flag("--backend", "fake"),
        "model.default": Flag("MODEL", FAKE),
        "store.kind": Flag("--no-store", "off"),
    }
    loaded = load_settings({"CAIRN_CONFIG": str(file)}, flags)
    with live_service(loaded.settings, loaded=loaded) as running:
        yield running.base_url


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (PHONE, "dark")])
def test_a_change_is_seen_applied_and_undone(
    size: tuple[int, int], scheme: str, origin: str, file: Path, watch: Any
) -> None:
    page = open_admin(watch(origin, size=size, scheme=scheme))
    page.get_by_label("Aliases, one a line").fill("claude-*\ngpt-*")
    page.get_by_role("combobox", name="Model", exact=True).select_option(FAKE)
    page.get_by_label("Temperature").fill("0.25")
    assert grave_findings(page) == []
    assert is_as_wide_as_its_window(page)
    page.get_by_role("button", name="Show the change").click()
    dialog = page.get_by_role("dialog", name="Change the settings?")
    expect(dialog).to_contain_text('+ aliases = ["claude-*", "gpt-*"]')
    expect(dialog).to_contain_text("+ temperature = 0.25")
    assert grave_findings(page) == []
    assert file.read_text() == TEXT
    page.get_by_role("button", name="Write and apply").click()
    expect(row_of(page, "settings-table", "server.aliases")).to_contain_text("gpt-*")
    with httpx.Client(base_url=origin) as client:
        model = next(one for one in get(client, "/models")["data"] if one["standing"]["id"] == FAKE)
        assert model["sampling"] == {"temperature": 0.25}
    page.get_by_role("button", name="Undo the last change").click()
    expect(page.get_by_role("dialog", name="Take the last change back?")).to_contain_text("- temperature = 0.25")
    page.get_by_role("button", name="Take it back").click()
    expect(page.get_by_label("Temperature")).to_have_value("")
    expect(page.get_by_role("button", name="Undo the last change")).to_be_hidden()
    assert file.read_text() == TEXT


def test_a_refusal_is_told_by_the_name_of_its_setting(origin: str, file: Path, watch: Any) -> None:
    page = open_admin(watch(origin, allows=["status of 400"]))
    page.get_by_label("Hosts that images are fetched from").fill("HTTPS://example.org")
    page.get_by_role("button", name="Show the change").click()
    expect(page.get_by_role("alert")).to_contain_text("server.image_hosts must be host names")
    assert file.read_text() == TEXT


def test_a_key_is_made_shown_once_and_revoked(browser: Any, tmp_path: Path, watch: Any) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(with_key("", Client("root", key_digest(b"the root"), admin=True)))
    file.chmod(0o600)
    settings = Settings(
        server=ServerSettings(port=0, key_file=str(file)),
        engine=EngineSettings(backend="fake"),
        model=ModelSettings(default=FAKE),
        store=StoreSettings(kind="off"),
    )
    with live_service(settings) as running:
        page = watch(running.base_url, allows=["status of 401"]).open(f"{running.base_url}/admin")
        page.locator("#key").fill("the root")
        page.get_by_role("button", name="Use this key").click()
        expect(row_of(page, "keys-table", "root (yours)")).to_be_visible()
        expect(row_of(page, "keys-table", "root (yours)").locator('[data-label="Tool servers"]')).to_have_text("all")
        page.locator("#keys-name").fill("ci")
        page.locator("#keys-mcp").fill("time, git")
        page.locator("#keys-form").get_by_role("button", name="Add a key").click()
        expect(page.locator("#keys-made-key")).to_contain_text("cairn_")
        assert key_digest(page.locator("#keys-made-key").inner_text().encode()) in file.read_text()
        expect(row_of(page, "keys-table", "ci").locator('[data-label="Tool servers"]')).to_have_text("git, time")
        assert 'mcp = ["git", "time"]' in file.read_text()
        assert grave_findings(page) == []
        page.get_by_role("button", name="Revoke ci").click()
        page.get_by_role("button", name="Revoke", exact=True).click()
        expect(row_of(page, "keys-table", "ci")).to_have_count(0)
        assert "[keys.ci]" not in file.read_text()
        page.goto("about:blank")
