"""A Quantiser that writes small folders, stops where a test wants it to, and remembers its orders."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from threading import Event
from typing import Any

from adapters.fake.engine import FakeModels
from adapters.huggingface.repository import HuggingFaceRepository
from application.ports.quantiser import (
    RECEIPT,
    QuantOrder,
    QuantPhase,
    QuantProgress,
    QuantQuality,
    QuantReceipt,
    partial_name,
)
from domain.models.quantisation import PlannedMatrix, QuantPlan
from tests.support.patience import PATIENCE_S

QUALITY = QuantQuality(kl=0.0123, agreement=0.954, perplexity=12.5, source_perplexity=12.1, num_tokens=512)
WEIGHTS = b"w" * 4096


def open_gate() -> Event:
    gate = Event()
    gate.set()
    return gate


class FakeQuantiser:
    """`gate`: a run waits for it when it has written half. `error`: what a run raises then. `plan_gate`: as `gate`, of
    a plan. `plan_error`: what a plan raises. `step_bytes`, `free_bytes`: as of the plan. `ended`: set by a run that
    ends."""

    def __init__(
        self,
        *,
        gate: Event | None = None,
        error: Exception | None = None,
        plan_gate: Event | None = None,
        plan_error: Exception | None = None,
        step_bytes: int = 1 << 20,
        free_bytes: int | None = None,
    ) -> None:
        self.gate, self.error = gate or open_gate(), error
        self.plan_gate, self.plan_error = plan_gate or open_gate(), plan_error
        self.step_bytes, self.free_bytes = step_bytes, free_bytes
        self.planned: list[QuantOrder] = []
        self.orders: list[QuantOrder] = []
        self.ended = Event()

    def plan(self, order: QuantOrder, report: Callable[[QuantProgress], None]) -> QuantPlan:
        self.planned.append(order)
        assert self.plan_gate.wait(PATIENCE_S), "the plan's gate was never opened"
        if self.plan_error is not None:
            raise self.plan_error
        report(QuantProgress(QuantPhase.MEASURING, 1, 2))
        return self._plan_of(order)

    def _plan_of(self, order: QuantOrder) -> QuantPlan:
        size = 1000 * order.form.bits // 8
        matrices = (
            PlannedMatrix("layers.0.up", order.form, 1000, size, self.step_bytes),
            PlannedMatrix("norm", None, 10, 20, 20),
        )
        return QuantPlan(matrices, 1, ("head.weight",), 64, self.free_bytes)

    def run(self, order: QuantOrder, report: Callable[[QuantProgress], None]) -> QuantReceipt:
        self.orders.append(order)
        try:
            return self._run(order, report)
        finally:
            self.ended.set()

    def _run(self, order: QuantOrder, report: Callable[[QuantProgress], None]) -> QuantReceipt:
        plan, out = self._plan_of(order), Path(order.out)
        work = out.parent / partial_name(out.name)
        work.mkdir(parents=True, exist_ok=True)
        report(QuantProgress(QuantPhase.WRITING, 0, len(WEIGHTS)))
        (work / "model.safetensors").write_bytes(WEIGHTS)
        report(QuantProgress(QuantPhase.WRITING, len(WEIGHTS) // 2, len(WEIGHTS)))
        assert self.gate.wait(PATIENCE_S), "the gate was never opened"
        if self.error is not None:
            raise self.error
        report(QuantProgress(QuantPhase.CHECKING, 1, 1))
        quality = QUALITY if order.checks else None
        write_copy(work, order, plan, quality)
        work.rename(out)
        return QuantReceipt(plan, quality)


def write_copy(folder: Path, order: QuantOrder, plan: QuantPlan, quality: QuantQuality | None) -> None:
    """What makes a folder a copy, and a model."""
    receipt = {
        "source": {"folder": order.source},
        "recipe": order.recipe,
        "bits_per_weight": plan.bits_per_weight,
        "quality": asdict(quality) if quality else None,
        "note": "" if quality else "not asked for",
    }
    config = {"model_type": "llama", "quantization": {"bits": order.form.bits, "group_size": order.form.group}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text("{}")
    (folder / RECEIPT).write_text(json.dumps(receipt))


class ModelsWithCopies(FakeModels):
    """The toy models, with those of a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._copies = HuggingFaceRepository([str(folder)], cache=folder / "none", can_load=lambda _: True)

    def list(self) -> Any:
        return sorted([*super().list(), *self._copies.list()], key=lambda one: one.id)

    def find(self, id: Any) -> Any:
        return super().find(id) or self._copies.find(id)

    def fetch(self, id: Any, on_progress: Any) -> Any:
        return self.find(id) or super().fetch(id, on_progress)
