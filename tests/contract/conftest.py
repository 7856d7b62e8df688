"""Models are shared by a file's tests: making them takes longer than using them."""

import pytest

from application.ports.compute import LoadedModel
from tests.support.contract_models import MODELS


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> LoadedModel:
    return MODELS[request.param]()
