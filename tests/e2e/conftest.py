"""Every answer that a client of these tests receives is read strictly by the official packages' models."""

from collections.abc import Iterator

import pytest

from tests.support.http.recorder import Recorder


@pytest.fixture(scope="package")
def recorder() -> Iterator[Recorder]:
    """The recorder of the answers that arrive in this process."""
    recorder = Recorder()
    with recorder.recording():
        yield recorder


@pytest.fixture(autouse=True)
def _official(recorder: Recorder) -> Iterator[None]:
    """Fails the test in which an answer arrived that the official models do not read."""
    yield
    assert recorder.take_problems() == []
