"""Sudden death of the process: kill -9 at random moments. Of the machine: test_store_power_cut.py."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.effort import scaled
from tests.support.processes.processes import fast_folder, finish, start


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-crash-", dir=fast_folder(tmp_path)))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_many_kills(scratch: Path) -> None:
    num_kills = max(12, scaled(40))
    run = start("-m", "tests.support.stores.kill_writer", str(scratch), str(num_kills), "11")
    summary = json.loads(finish(run, 280))
    assert summary["kills"] == num_kills
    assert summary["acknowledged"] > 2 * num_kills


def test_many_kills_while_what_is_computed_is_stored_behind(scratch: Path) -> None:
    num_kills = max(6, scaled(20))
    run = start("-m", "tests.support.stores.kill_behind", str(scratch), str(num_kills), "13")
    summary = json.loads(finish(run, 280))
    assert (summary["kills"], summary["stored"] >= 3) == (num_kills, True)
