"""A real browser for tests of the pages, watched: what its console complains of and whom it asks is part of the result.

Tests that import this are skipped where there is no playwright, and by `tests/browser/conftest` where there is no
Chromium; with CAIRN_NEEDS_BROWSER set, both are failures.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.patience import PATIENCE_S


def needed(module: str) -> Any:
    """A module of the browser's tools, or the end of the tests that import it here."""
    if os.environ.get("CAIRN_NEEDS_BROWSER"):
        return import_module(module)
    return pytest.importorskip(module, reason=f"no {module}: `make test` installs it")


sync_api = needed("playwright.sync_api")
expect = sync_api.expect

PATIENCE_MS = PATIENCE_S * 1000
"""How long a page may take to show what it must: only a hang does."""

WIDE = (1280, 900)
PHONE = (375, 740)

OMITTED = (
    *("WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "SpareRendererForSitePerProcess"),
    *("HttpsUpgrades", "LensOverlay", "MediaRouter", "OptimizationHints", "PaintHolding", "AimEnabled"),
)
"""Features of Chromium. The first ones start processes for each window that nobody sees, which took half of a test's
processor time; the others playwright omits, and the last list counts."""

FLAGS = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(OMITTED)}",
)


def chromium() -> str | None:
    """The program to drive: the one that CHROMIUM names, or the system's."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@contextmanager
def running_browser(program: str) -> Iterator[Any]:
    """A Browser of playwright's. While it runs, this thread can run no event loop of its own."""
    with sync_api.sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_MS)
        browser = playwright.chromium.launch(
            executable_path=program, args=list(FLAGS), chromium_sandbox=False, timeout=PATIENCE_MS
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A context of a browser with its pages, and what went wrong in them. `allows`: parts of console messages that a
    test expects, such as the status of a request that is to be refused."""

    context: Any
    origin: str
    allows: Sequence[str] = ()
    problems: list[str] = field(default_factory=list)

    def open(self, url: str) -> Any:
        page = self.context.new_page()
        page.goto(url)
        return page

    def on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self._note(f"console {message.type}: {message.text} ({message.location.get('url', '')})")

    def on_error(self, error: Any) -> None:
        self._note(f"uncaught: {error}")

    def on_request(self, request: Any) -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob") and f"{address.scheme}://{address.netloc}" != self.origin:
            self.problems.append(f"asked somebody else: {request.url}")

    def _note(self, problem: str) -> None:
        if not any(allowed in problem for allowed in self.allows):
            self.problems.append(problem)


@contextmanager
def watched(
    browser: Any, origin: str, *, size: tuple[int, int] = WIDE, scheme: str = "light", allows: Sequence[str] = ()
) -> Iterator[Watched]:
    """A fresh profile. At its end nothing may have gone wrong. `origin`: the only server that it may ask."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme=scheme,
        reduced_motion="reduce",
        has_touch=size == PHONE,
        service_workers="block",
    )
    context.set_default_timeout(PATIENCE_MS)
    watch = Watched(context, origin, allows)
    context.on("console", watch.on_console)
    context.on("weberror", lambda error: watch.on_error(error.error))
    context.on("request", watch.on_request)
    try:
        yield watch
    finally:
        context.close()
    assert not watch.problems, "\n".join(watch.problems)


def hold_timers(page: Any) -> None:
    """Until `page.clock.resume()`: what a page tells for a moment only stays, however late it is looked at."""
    page.clock.install()
    page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 3600)  # ahead, however long it takes to get there


def is_as_wide_as_its_window(page: Any) -> bool:
    """Whether nothing sticks out to the right, so that a phone does not scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))
