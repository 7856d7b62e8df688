"""The models that can be found: embedded ones, local folders, a hub's cache. Any thread; blocking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from domain.ids import ModelId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.sampling import SamplingDefaults
from domain.scheduling.memory_plan import PlannedModel


@dataclass(frozen=True, slots=True)
class ModelPreview:
    """The facts about a model that are known without its weights. `weight_bytes`: their size once loaded.
    `advised`: the sampling that its makers advise. `expert_bytes`: of the experts among the weights."""

    weight_bytes: int = 0
    advised: SamplingDefaults = SamplingDefaults()
    expert_bytes: int = 0


ModelCheck: TypeAlias = Callable[[ModelSource, LoadOptions], ModelPreview]
"""Checks a model without reading its weights. Raises ModelLoadFailed for a defect that would prevent loading, so that
nothing is evicted for such a model. Any thread; blocking."""


ModelPlanner: TypeAlias = Callable[[ModelSource, LoadOptions], PlannedModel]
"""The memory that a model would need, from its configuration and, where they are present, its files' headers. Raises
ModelLoadFailed. Any thread; blocking, for up to some seconds."""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Bytes of a first download; `total_bytes` is 0 while unknown."""

    done_bytes: int
    total_bytes: int


class ModelRepository(Protocol):
    """Names to local folders."""

    def list(self) -> Sequence[ModelSource]:
        """Returns every model that can be served without a download, ordered by id."""
        ...

    def find(self, id: ModelId) -> ModelSource | None:
        """Returns a local model; None if it is absent. Never downloads."""
        ...

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        """As `find`, downloading a hub model first where that is allowed. Raises ModelNotFound, ModelLoadFailed."""
        ...
