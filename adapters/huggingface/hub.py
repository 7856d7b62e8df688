"""A ModelHub over huggingface_hub and its cache."""

import importlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from adapters.huggingface.hub_cache import default_cache, held_bytes, remove
from adapters.huggingface.hub_download import download, in_words, look_up
from adapters.huggingface.repository import is_hub_id
from application.ports.model_hub import DownloadSize, HubMatch
from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed, require
from domain.ids import ModelId
from domain.printable import printable

FORMAT = "mlx"
"""The hub's tag of models in MLX's format."""

TASKS = frozenset(
    {
        "text-generation",
        "image-text-to-text",
        "any-to-any",
        "feature-extraction",
        "sentence-similarity",
        "text-ranking",
        "text-classification",
    }
)
"""The hub's names for what this server can do. Models without one are listed too."""

MAX_ASKED = 100
"""Models of one search that the hub is asked for; those of other tasks are left out."""

TIMEOUT_S = 10.0

_ASKED = ["config", "downloads", "gated", "pipeline_tag", "safetensors"]
_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
"""The bytes of a value, by the hub's name of its type; all others take one."""


class HuggingFaceHub:
    """`cache`, `endpoint`: by default those of huggingface_hub."""

    def __init__(self, cache: Path | None = None, endpoint: str | None = None) -> None:
        self._cache = cache if cache is not None else default_cache()
        self._endpoint = endpoint

    def search(self, query: str, limit: int) -> Sequence[HubMatch]:
        hub: Any = importlib.import_module("huggingface_hub")
        api = hub.HfApi(endpoint=self._endpoint)
        asked = {"search": query, "filter": FORMAT, "sort": "downloads", "limit": MAX_ASKED, "expand": _ASKED}
        with in_words(""):
            # list_models asks a hub that cannot be reached again and again, for longer than a page waits.
            path, headers = f"{api.endpoint}/api/models", hub.utils.build_hf_headers()
            answer = hub.get_session().get(path, params=asked, headers=headers, timeout=TIMEOUT_S)
            hub.utils.hf_raise_for_status(answer)
            found = [hub.ModelInfo(**{"siblings": None, **one}) for one in answer.json()]
        matches = [_match(one) for one in found if one.pipeline_tag is None or one.pipeline_tag in TASKS]
        return [match for match in matches if is_hub_id(match.id)][:limit]

    def size(self, id: ModelId) -> DownloadSize:
        self._check(id)
        found = look_up(id, self._cache, self._endpoint)
        place = next(folder for folder in (self._cache, *self._cache.parents) if folder.is_dir())
        free = shutil.disk_usage(place).free
        return DownloadSize(found.missing_bytes, found.weight_bytes, free, str(self._cache), found.model_type)

    def download(self, id: ModelId, on_progress: Callable[[DownloadProgress], None]) -> str:
        self._check(id)
        return str(download(id, self._cache, on_progress, self._endpoint))

    def remove(self, id: ModelId) -> int:
        num_bytes = held_bytes(self._cache, id)
        try:
            remove(self._cache, id)
        except OSError as error:
            raise ModelLoadFailed(f"{id} cannot be removed: {error}") from error
        return num_bytes

    def _check(self, id: ModelId) -> None:
        require(is_hub_id(id), "model", f"must be ORG/NAME as the hub writes it, not {printable(id)!r}")


def _match(found: Any) -> HubMatch:
    config: Mapping[str, Any] = found.config or {}
    counts: Mapping[str, int] = getattr(found.safetensors, "parameters", None) or {}
    return HubMatch(
        ModelId(found.id),
        str(config.get("model_type") or ""),
        sum(num * _SIZES.get(kind, 1) for kind, num in counts.items()),
        int(found.downloads or 0),
        bool(found.gated),
    )
