"""Whatever hangs, a server that is asked to stop has ended before its supervisor loses patience and kills it."""

import re
from pathlib import Path

import pytest

from adapters.engine_process.engine import Timeouts
from adapters.otel.pipeline import SHUTDOWN_TIMEOUT_S
from interfaces.composition.cache import CLOSE_TIMEOUT_S, FLUSH_TIMEOUT_S
from interfaces.composition.service import STOP_TIMEOUT_S
from interfaces.http.front.server import CANCEL_S, GRACE_S

ROOT = Path(__file__).parents[4]
LOG_S, WATCH_S = 4.0, 1.0
MARGIN_S = 10.0

CACHE_S = FLUSH_TIMEOUT_S + 2 * CLOSE_TIMEOUT_S
PATIENCE = Timeouts()


@pytest.mark.parametrize("file", ["deploy/cairn.service", "deploy/dev.cairn.server.plist", "docs/deploy.md"])
def test_all_that_a_stop_waits_for_ends_within_what_the_unit_allows(file: str) -> None:
    said = r"(?:^TimeoutStopSec=|<key>ExitTimeOut</key>\s*<integer>)(\d+)"
    (allowed,) = re.findall(said, (ROOT / file).read_text(), re.MULTILINE)
    of_a_child = PATIENCE.close_s + PATIENCE.gone_s
    engine_s = STOP_TIMEOUT_S + max(CACHE_S, of_a_child)
    http_s = GRACE_S + CANCEL_S
    assert http_s + engine_s + WATCH_S + CLOSE_TIMEOUT_S + SHUTDOWN_TIMEOUT_S + LOG_S <= int(allowed) - MARGIN_S


def test_a_child_that_sees_to_its_store_is_not_killed_over_it() -> None:
    assert PATIENCE.close_s > CACHE_S
