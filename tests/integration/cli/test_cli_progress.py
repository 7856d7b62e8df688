"""The progress of a download and a load, as the commands that wait for them show it."""

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

import pytest

from adapters.fake.options import FakeOptions
from application.ports.engine import LoadProgress
from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed
from domain.ids import ModelId, SequenceId
from interfaces.cli.server import loading
from tests.integration.engine.test_model_pool import A, B, Bench


class Bars:
    """Stands in for `progress`: what was opened, how far each came, and what was closed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int | None]] = []
        self.num_open = 0

    @contextmanager
    def __call__(self, what: str, total: int | None, *, quiet: bool) -> Generator["Bars"]:
        self._what = what
        self.num_open += 1
        try:
            yield self
        finally:
            self.num_open -= 1

    def reach(self, done: int, total: int | None) -> None:
        self.seen.append((self._what, done, total))

    def advance(self, count: int) -> None:
        raise AssertionError("bytes in all are known here")


def test_a_download_and_a_load_are_a_bar_each(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Bars()
    monkeypatch.setattr(loading, "progress", bars)
    with ExitStack() as opened:
        stages = loading.LoadStages("org/model", opened)
        stages.show(None, None)
        stages.show(DownloadProgress(5, 20), None)
        stages.show(DownloadProgress(10, 20), LoadProgress(ModelId("other"), 1, 2))
        stages.show(None, LoadProgress(ModelId("org/model"), 3, 9))
        assert bars.num_open == 1
    assert bars.num_open == 0
    assert bars.seen == [
        ("downloading org/model", 5, 20),
        ("downloading org/model", 10, 20),
        ("loading org/model", 3, 9),
    ]


@pytest.mark.parametrize("error", [None, "no such layer"])
def test_progress_of_a_load_is_shown(error: str | None) -> None:
    seen: list[LoadProgress | None] = []

    def note(operation: str, _id: SequenceId | None, _count: int) -> None:
        if operation == "load_piece":
            seen.append(bench.loop.status().loading)

    bench = Bench(max_loaded=2, options={B: FakeOptions(hook=note, load_pieces=3, load_error=error)})

    async def work() -> None:
        await bench.use(A)
        assert bench.loop.status().loading is None
        if error is None:
            await bench.use(B)
        else:
            with pytest.raises(ModelLoadFailed, match=error):
                await bench.use(B)
        assert bench.loop.status().loading is None

    bench.run(work)
    assert [one.id for one in seen if one is not None] == [B] * 3
