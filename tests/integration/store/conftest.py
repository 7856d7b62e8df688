"""A folder where a store's syncs cost little."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.processes import fast_folder


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-store-", dir=fast_folder(tmp_path)))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
