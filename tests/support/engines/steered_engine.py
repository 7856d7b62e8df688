"""MLX whose prefill a test can hold at a position, which a race would hit by chance only."""

import threading
from collections.abc import Sequence
from typing import Any, cast

from adapters.mlx.engine import MlxEngine
from application.ports.compute import DecodeStart, LoadedModel, LoadReport, LoadSteps, PromptScores, unreported
from domain.ids import SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from tests.support.patience import PATIENCE_S


class PrefillGate:
    """Closed by `close_at`: the next chunk that starts there or later waits for `open`."""

    def __init__(self) -> None:
        self._at: int | None = None
        self._reached = threading.Event()
        self._opened = threading.Event()

    def close_at(self, position: int) -> None:
        """Only while nothing is held."""
        self._reached.clear()
        self._opened.clear()
        self._at = position

    def wait_until_reached(self) -> None:
        assert self._reached.wait(PATIENCE_S), f"no prefill came to {self._at}"

    def open(self, *, next_at: int | None = None) -> None:
        """`next_at`: close again at that position."""
        self._at = None
        opened = self._opened
        if next_at is not None:
            self._reached, self._opened = threading.Event(), threading.Event()
            self._at = next_at
        opened.set()

    def pass_through(self, position: int) -> None:
        """On the compute thread, before a chunk that starts at `position`."""
        if self._at is None or position < self._at:
            return
        opened = self._opened
        self._reached.set()
        assert opened.wait(PATIENCE_S), "the gate was never opened"


class SteeredModel:
    """A LoadedModel: the one it wraps, behind the gate."""

    def __init__(self, model: LoadedModel, gate: PrefillGate) -> None:
        self._model = model
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill(self, id: SequenceId, token_ids: Sequence[int], **rest: Any) -> PromptScores:
        self._gate.pass_through(self._model.position(id))
        return self._model.prefill(id, token_ids, **rest)

    def start_decode(self, id: SequenceId, token_ids: Sequence[int], start: DecodeStart, **rest: Any) -> PromptScores:
        self._gate.pass_through(self._model.position(id))
        return self._model.start_decode(id, token_ids, start, **rest)


class SteeredEngine(MlxEngine):
    def __init__(self, gate: PrefillGate) -> None:
        super().__init__()
        self._gate = gate

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        return cast(LoadedModel, SteeredModel((yield from super().load(source, options, report)), self._gate))
