"""Fixtures that the replays of conversations share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.mlx.small_demos import write_small_demos


@pytest.fixture(scope="package", autouse=True)
def _cache_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps digests and measured peaks of models in a folder of this test's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small demo models."""
    return write_small_demos(tmp_path_factory.mktemp("models"))
