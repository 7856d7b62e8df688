"""The admin page's panel of tool servers: state, calls, errors, log and restart; hidden where there are none."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from application.ports.tool_servers import ServerState, ServerStatus
from tests.support.browser.accessibility import grave_findings
from tests.support.browser.admin_page import open_admin, row_of
from tests.support.browser.browser import PHONE, WIDE, expect, is_as_wide_as_its_window
from tests.support.http.servers.fake_service import FakeService, Serving, fake_service
from tests.support.mcp.fake_servers import FakeToolServers

SIZES = pytest.mark.parametrize("size", [WIDE, PHONE], ids=["desktop", "phone"])


class _Shown(FakeToolServers):
    """Servers with a state that a test gives them."""

    def __init__(self) -> None:
        super().__init__({"time": ["now"], "git": ["log"]})
        self.shown = [
            ServerStatus("time", "stdio", ServerState.IDLE, protocol="2026-07-28", num_tools=2, num_calls=5),
            ServerStatus(
                *("git", "stdio", ServerState.WAITING, "<b>it</b> ended with status 1", "2025-11-25", 12),
                digest="0123456789abcdef" * 4,
                num_changes=1,
                num_starts=3,
                num_calls=7,
                num_failures=4,
                log=["starting", "<img src=x onerror=alert(1)>" * 20],
            ),
        ]

    def status(self) -> Sequence[ServerStatus]:
        return self.shown

    async def restart(self, server: str) -> None:
        await super().restart(server)
        self.shown = [replace(one, state=ServerState.READY, error="") for one in self.shown]


@SIZES
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_tool_servers_are_shown_and_restarted(size: tuple[int, int], theme: str, serving: Serving, watch: Any) -> None:
    servers = _Shown()
    page = open_admin(watch(serving(fake_service(tool_servers=servers)).base_url, size=size, scheme=theme))
    git = row_of(page, "tool-servers-table", "git")
    expect(git).to_contain_text("waiting")
    expect(git).to_contain_text("<b>it</b> ended with status 1")
    expect(git).to_contain_text("list changed 1×: 0123456789ab")
    expect(git).to_contain_text("started 3 times")
    expect(row_of(page, "tool-servers-table", "2026-07-28")).to_contain_text("not started")
    git.locator("summary").click()
    expect(git.locator("pre")).to_contain_text("<img src=x onerror")
    assert is_as_wide_as_its_window(page)
    assert grave_findings(page) == []
    git.get_by_role("button").click()
    expect(git).to_contain_text("ready")
    expect(page.locator("#notice")).to_have_text("git was restarted.")
    assert servers.restarted == ["git"]


def test_the_panel_is_hidden_without_tool_servers(service: FakeService, watch: Any) -> None:
    page = open_admin(watch(service.base_url))
    with page.expect_response("**/v1/mcp/servers"):
        page.reload()
    expect(page.locator("#tool-servers")).to_be_hidden()
    expect(page.locator("#tool-servers-link")).to_be_hidden()
