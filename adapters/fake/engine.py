"""The toy compute engine, its model repository and its planner, in plain Python."""

from collections.abc import Callable, Collection, Mapping, Sequence
from threading import Lock, get_ident

from adapters.fake.model import FakeModel
from adapters.fake.options import FakeOptions
from application.ports.compute import LoadedModel, LoadReport, LoadSteps, unreported
from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed, ModelNotFound
from domain.ids import ModelId
from domain.models.capability import PLAIN_USE, Capability, ModelUse
from domain.models.load_progress import LoadPhase
from domain.models.model_card import ContextLength, LoadOptions, ModelSource
from domain.scheduling.memory_plan import PlannedModel

DEFAULT_NAMES = ("fake-attention", "fake-hybrid", "fake-windowed")


class FakeEngine:
    """A ComputeEngine of FakeModels. `options`: by model id, `default` for any other id; LoadOptions change nothing.

    Every method but `memory` on the thread of the first call. `loaded` and `is_closed` are for assertions.
    """

    def __init__(
        self, options: Mapping[ModelId, FakeOptions] | None = None, default: FakeOptions | None = None
    ) -> None:
        self._options = dict(options or {})
        self._default = default or FakeOptions()
        self._lock = Lock()
        self._thread: int | None = None
        self.loaded: list[FakeModel] = []
        self.is_closed = False

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        self._check_thread()
        toy = self._options.get(source.id, self._default)
        if toy.hook is not None:
            toy.hook("load", None, len(self.loaded))
        if toy.load_waits_for is not None:
            report(LoadPhase.HASHING, 0, toy.weight_bytes)
            yield toy.load_waits_for
        for piece in range(toy.load_pieces):
            self._check_thread()
            report(LoadPhase.READING, piece * toy.weight_bytes // toy.load_pieces, toy.weight_bytes)
            if toy.hook is not None:
                toy.hook("load_piece", None, piece)
            yield None
        if toy.load_error is not None:
            raise ModelLoadFailed(toy.load_error)
        report(LoadPhase.MEASURING, 0, 0)
        if toy.hook is not None:
            toy.hook("measure", None, len(self.loaded))
        model = FakeModel(source, toy, options.speculation)
        with self._lock:
            self.loaded.append(model)
        return model

    def unload(self, model: LoadedModel) -> None:
        self._check_thread()
        model.close(tuple(model.open_ids()))
        model.drop(tuple(model.left_ids()))
        with self._lock:
            self.loaded = [other for other in self.loaded if other is not model]

    def memory(self) -> Mapping[str, int]:
        with self._lock:
            models = tuple(self.loaded)
        weights = sum(model.description.weight_bytes for model in models)
        states = sum(model.state_bytes() for model in models)
        return {"active": weights + states, "weights": weights, "states": states}

    def clear_cache(self) -> None:
        """Does nothing: a toy keeps no freed buffers."""
        self._check_thread()

    def finish(self) -> None:
        """Does nothing: a toy computes at once."""
        self._check_thread()

    def close(self) -> None:
        self._check_thread()
        self.is_closed = True

    def _check_thread(self) -> None:
        if self.is_closed:
            raise RuntimeError("the engine is closed")
        if self._thread is None:
            self._thread = get_ident()
        if self._thread != get_ident():
            raise RuntimeError("the engine belongs to the thread of its first call")


class FakeModels:
    """A ModelRepository of `names`, without files or downloads. `uses`: of those that do not generate; those of
    `seeing` see images too. `file_bytes`: of each."""

    def __init__(
        self,
        names: Sequence[str] = DEFAULT_NAMES,
        uses: Mapping[str, ModelUse] | None = None,
        seeing: Collection[str] = (),
        file_bytes: int = 0,
    ) -> None:
        uses = {**dict.fromkeys(seeing, ModelUse(frozenset({Capability.GENERATE, Capability.SEE}))), **(uses or {})}
        self._sources = {
            id: ModelSource(id, f"fake:{id}", 1_700_000_000, "fake", file_bytes, use=uses.get(id, PLAIN_USE))
            for id in map(ModelId, sorted(names))
        }

    def list(self) -> Sequence[ModelSource]:
        return list(self._sources.values())

    def find(self, id: ModelId) -> ModelSource | None:
        return self._sources.get(id)

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        if id not in self._sources:
            raise ModelNotFound(f"no model named {id}")
        return self._sources[id]


def plan_toy(_source: ModelSource, _options: LoadOptions) -> PlannedModel:
    """A ModelPlanner: every name is a toy of default options."""
    options = FakeOptions()
    return PlannedModel("fake", ContextLength(options.context_length), options.layout, options.memory)
