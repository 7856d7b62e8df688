"""The model hub and its cache on this machine: search, sizes, downloads, removal. Any thread; blocking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from application.ports.model_repository import DownloadProgress
from domain.ids import ModelId


@dataclass(frozen=True, slots=True)
class HubMatch:
    """A model that a search found. `model_type`: of its configuration, empty if unknown. `weight_bytes`: by the hub's
    counts, 0 if unknown. `is_gated`: its terms have to be accepted first."""

    id: ModelId
    model_type: str = ""
    weight_bytes: int = 0
    num_downloads: int = 0
    is_gated: bool = False


@dataclass(frozen=True, slots=True)
class DownloadSize:
    """The size of a model's files, and of what the cache has not of them. `free_bytes`: of the disk. `cache`: its
    folder."""

    missing_bytes: int
    weight_bytes: int
    free_bytes: int
    cache: str
    model_type: str = ""


class ModelHub(Protocol):
    """One hub. The errors are in words for users."""

    def search(self, query: str, limit: int) -> Sequence[HubMatch]:
        """Returns models in the formats that this server reads, the most downloaded first. Raises ModelLoadFailed."""
        ...

    def size(self, id: ModelId) -> DownloadSize:
        """Raises InvalidRequest for a name that is no hub id, ModelNotFound, and ModelLoadFailed, also for weights that
        the hub does not have whole."""
        ...

    def download(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> str:
        """Downloads what is missing, and returns the model's folder. An interrupted download is continued. Raises as
        `size`, and what `on_progress` raises, if that is a DomainError."""
        ...

    def remove(self, id: ModelId) -> int:
        """Removes a model from the cache and returns the bytes that it took. Raises ModelNotFound, ModelLoadFailed."""
        ...
