"""What suites share: models, which take longer to make than to use, and folders where a sync costs nothing."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from application.ports.compute import LoadedModel
from tests.support.effort import some_of
from tests.support.mlx.contract_models import MODELS, OF_EACH_LAYOUT
from tests.support.processes.processes import fast_folder


@pytest.fixture(scope="module", params=some_of(MODELS, OF_EACH_LAYOUT))
def model(request: pytest.FixtureRequest) -> LoadedModel:
    return MODELS[request.param]()


@pytest.fixture
def store_path(tmp_path: Path) -> Iterator[Path]:
    """Where a store may be made: in memory if there is such a place, for its syncs are not what a contract is about."""
    folder = Path(tempfile.mkdtemp(prefix="cairn-contract-", dir=fast_folder(tmp_path)))
    yield folder / "store"
    shutil.rmtree(folder, ignore_errors=True)
