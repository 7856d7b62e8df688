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
    `advised`: the sampling that its makers advise."""

    weight_bytes: int = 0
    advised: SamplingDefaults = SamplingDefaults()


ModelCheck: TypeAlias = Callable[[ModelSource, LoadOptions], ModelPreview]
"""Raises ModelLoadFailed for what keeps a model from being loaded and can be told without reading its weights, so that
nothing is evicted for it. Any thread; blocking."""


ModelPlanner: TypeAlias = Callable[[ModelSource, LoadOptions], PlannedModel]
"""What a model would need of memory, from its configuration and, where they are here, its files' headers. Raises
ModelLoadFailed. Any thread; blocking, for up to some seconds."""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """Bytes of a first download; `total_bytes` is 0 while unknown."""

    done_bytes: int
    total_bytes: int


class ModelRepository(Protocol):
    """Names to local folders."""

    def list(self) -> Sequence[ModelSource]:
        """Every model that could be served without a download, ordered by id."""
        ...

    def find(self, id: ModelId) -> ModelSource | None:
        """A model that is here already; None otherwise. Never downloads."""
        ...

    def fetch(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> ModelSource:
        """As `find`, downloading a hub model first where that is allowed. Raises ModelNotFound, ModelLoadFailed."""
        ...
