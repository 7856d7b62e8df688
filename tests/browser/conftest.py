"""Browser, servers and pages for the tests of this folder.

One browser and one server with an embedded model serve them all; each test has a browser profile of its own. Both end
with the folder: while playwright runs, the tests' thread can run no event loop.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from tests.support.http.servers.fake_service import FakeService, Serving, fake_service
from tests.support.http.servers.live_service import LiveService, live_service


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    from tests.support.browser.browser import chromium, running_browser

    program = chromium()
    if program is None:
        explained = "there is no Chromium: install it, or name one with CHROMIUM=/path"
        (pytest.fail if os.environ.get("CAIRN_NEEDS_BROWSER") else pytest.skip)(explained)
    with running_browser(program) as running:
        yield running


@pytest.fixture
def serving(browser: Any) -> Iterator[Serving]:
    """Call it with a `fake_service(...)` for a server of the test's own that outlives the profiles: a page asks to the
    last, and one whose server ended first may complain of that."""
    with ExitStack() as services:
        yield services.enter_context


@pytest.fixture
def watch(browser: Any, serving: Serving) -> Iterator[Callable[..., Any]]:
    """Call it with a server's address (and `size`, `scheme`, `allows`) for a profile of the browser; its end is looked
    at when the test ends."""
    from tests.support.browser.browser import watched

    with ExitStack() as profiles:
        yield lambda origin, **options: profiles.enter_context(watched(browser, origin, **options))


@pytest.fixture
def service(serving: Serving) -> FakeService:
    """A server on the toy engine, the test's own."""
    return serving(fake_service(reuses=True))


@pytest.fixture(scope="package")
def demo(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    """A server with the embedded model, as it ships, and a store of its own. Tests share it."""
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default="cairn-demo", download=False),
        store=StoreSettings(dir=str(tmp_path_factory.mktemp("store")), quota=ByteSize(num_bytes=256 << 20)),
    )
    with live_service(settings) as running:
        yield running
