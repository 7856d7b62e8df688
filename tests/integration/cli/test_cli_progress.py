"""The progress of a download and a load, as the commands that wait for them show it."""

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager

import pytest

from adapters.fake.options import FakeOptions
from application.ports.model_repository import DownloadProgress
from domain.byte_size import format_bytes
from domain.errors import ModelLoadFailed
from domain.ids import ModelId, SequenceId
from domain.models.load_progress import LoadPhase, LoadProgress
from interfaces.cli.server import loading
from tests.integration.engine.test_model_pool import A, B, Bench


class Bars:
    """Stands in for `progress`: what was opened, how far each came, and what was closed."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str, int | None, float | None]] = []
        self.num_open = 0

    @contextmanager
    def __call__(
        self, what: str, total: int | None, *, quiet: bool, amount: Callable[[int], str] = format_bytes
    ) -> Generator["Bars"]:
        self._what, self._amount = what, amount
        self.num_open += 1
        try:
            yield self
        finally:
            self.num_open -= 1

    def reach(self, done: int, total: int | None, left_s: float | None = None) -> None:
        self.seen.append((self._what, self._amount(done), total, left_s))

    def advance(self, count: int) -> None:
        raise AssertionError("bytes in all are known here")


def test_a_download_and_each_phase_of_a_load_are_a_bar_each(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = Bars()
    monkeypatch.setattr(loading, "progress", bars)
    with ExitStack() as opened:
        stages = loading.LoadStages("org/model", opened)
        load = LoadProgress(ModelId("org/model"))
        stages.show(None, None, 0)
        stages.show(DownloadProgress(5, 20), None, 0)
        stages.show(DownloadProgress(10, 20), LoadProgress(ModelId("other")), 0)
        stages.show(None, load, 0)
        load = load.reached(LoadPhase.HASHING, 0, 9, 0).reached(LoadPhase.HASHING, 3, 9, 4 * S)
        stages.show(None, load, 5 * S)
        load = load.reached(LoadPhase.MEASURING, 0, 0, 9 * S)
        stages.show(None, load, 9 * S)
        load = load.reached(LoadPhase.MEASURING, 0, 2, 9 * S).reached(LoadPhase.MEASURING, 1, 2, 39 * S)
        stages.show(None, load, 39 * S)
        assert bars.num_open == 1
    assert bars.num_open == 0
    assert bars.seen == [
        ("downloading org/model", "5 B", 20, None),
        ("downloading org/model", "10 B", 20, None),
        ("loading org/model", "0 B", 0, None),
        ("hashing org/model", "3 B", 9, 7),
        ("measuring org/model", "0", 0, None),
        ("measuring org/model", "1", 2, 30),
    ]


S = 1_000_000_000


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
    known = [one for one in seen if one is not None]
    assert [(one.id, one.phase, one.fraction) for one in known] == [
        (B, LoadPhase.READING, pytest.approx(piece / 3, abs=1e-5)) for piece in range(3)
    ]
