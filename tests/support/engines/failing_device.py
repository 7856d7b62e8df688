"""A device that fails under toy models as Metal does: a pass leaves garbage, and the next check raises it.

pass ──fails──► its states hold garbage, which captures copy ──► the next pass, read or wait raises DeviceFailed
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random
from typing import Any, cast

from adapters.fake.engine import FakeEngine
from adapters.fake.leaves import TokenLeaf
from adapters.fake.model import FakeModel
from application.ports.compute import DeviceFailed, LoadedModel, LoadReport, LoadSteps, unreported
from domain.ids import SequenceId
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.record import GroupPayloads

WORDS = "[METAL] Command buffer execution failed: planted"
PASSES = frozenset({"prefill", "start_decode", "decode", "pool", "encode_image", "restore"})
CAPTURES = frozenset({"capture_blocks", "capture_snapshot"})


class FailingDevice:
    """The device of one engine after the other. `num_failed`: passes that failed; `num_told`: engines that were
    told. `num_passes`: by operation; `num_after`: since an engine was told. `garbage`: the bytes of every tensor
    that was captured of garbage."""

    def __init__(
        self,
        draw: Random,
        num_good: int | None = None,
        kinds: Collection[str] = PASSES,
        *,
        victim: Callable[..., bool] = lambda *_: False,
    ) -> None:
        """`num_good`: the passes of these `kinds` before the one that fails; None for none that fails. `victim`: makes
        a pass fail each time it is met."""
        self._draw, self._num_left, self._kinds, self._victim = draw, num_good, kinds, victim
        self.num_passes = Counter[str]()
        self._is_kept = False
        self.num_failed = self.num_told = self.num_after = 0
        self.garbage: set[bytes] = set()
        self._spoiled: dict[SequenceId, int] = {}  # the first position of garbage

    def engine(self, inner: FakeEngine) -> "FailingEngine":
        self._is_kept = False
        self._spoiled.clear()
        return FailingEngine(inner, self)

    def check(self) -> None:
        """Raises the failure of a pass, once."""
        if self._is_kept:
            self._is_kept = False
            self.num_told += 1
            raise DeviceFailed(WORDS)

    def run(self, model: FakeModel, operation: str, work: Callable[..., Any], given: Sequence[Any], named: Any) -> Any:
        if operation in CAPTURES:
            return self._captured(work(*given, **named), *given)
        if operation not in PASSES:
            return work(*given, **named)
        self.check()
        self.num_after += self.num_told > 0
        found = work(*given, **named)
        if self._fails(model, operation, given):
            self.num_failed += 1
            self._is_kept = True
            for id in given[0] if operation == "decode" else given[:1] if operation != "encode_image" else ():
                self._spoil(model, id, len(given[1]) if operation in ("prefill", "start_decode") else 1)
            if self._draw.random() < 0.3:  # it waits for itself
                self.check()
        return found

    def _fails(self, model: FakeModel, operation: str, given: Sequence[Any]) -> bool:
        if self._victim(model, operation, given):
            return True
        self.num_passes[operation] += 1
        if self._num_left is None or operation not in self._kinds:
            return False
        self._num_left -= 1
        return self._num_left == -1

    def _captured(self, found: Any, id: SequenceId, spans: Any) -> Any:
        if not self._is_kept:
            return found
        if self._draw.random() < 0.3:  # a copy is computed as well, and meets the error
            self.check()
        if (first := self._spoiled.get(id)) is not None:
            copies: list[GroupPayloads] = [found] if isinstance(found, Mapping) else found
            ends = [first + 1] if isinstance(found, Mapping) else [end for _, end in spans]
            for groups in (groups for groups, end in zip(copies, ends, strict=True) if end > first):
                self.garbage.update(bytes(buffer) for payload in groups.values() for buffer in payload.buffers())
        return found

    def _spoil(self, model: FakeModel, id: SequenceId, num_tokens: int) -> None:
        """Leaves garbage in place of the last tokens of a state."""
        if (state := model._states.get(id)) is None:
            return
        self._spoiled[id] = state.position - num_tokens
        for leaf in state.leaves.values():
            words = leaf.values if isinstance(leaf, TokenLeaf) else leaf.words
            for at in range(max(0, len(words) - num_tokens), len(words)):
                words[at] ^= 0xDEAD
            leaf.digest ^= 0xDEAD


class _FailingModel:
    """A LoadedModel on a device that fails."""

    def __init__(self, inner: FakeModel, device: FailingDevice) -> None:
        self.inner, self._device = inner, device

    def __getattr__(self, operation: str) -> Any:
        found = getattr(self.inner, operation)
        if not callable(found):
            return found
        return lambda *given, **named: self._device.run(self.inner, operation, found, given, named)


class FailingEngine:
    """A ComputeEngine on a device that fails."""

    def __init__(self, inner: FakeEngine, device: FailingDevice) -> None:
        self._inner, self._device = inner, device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        inner = yield from self._inner.load(source, options, report)
        return cast(LoadedModel, _FailingModel(cast(FakeModel, inner), self._device))

    def unload(self, model: LoadedModel) -> None:
        self._inner.unload(cast(_FailingModel, model).inner)

    def finish(self) -> None:
        self._device.check()
