"""Downloads of hub models into huggingface_hub's own cache, with progress and actionable errors."""

import importlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

from application.ports.model_repository import DownloadProgress
from domain.errors import ModelLoadFailed, ModelNotFound
from domain.ids import ModelId

PATTERNS = ("*.json", "model*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.jsonl")
"""The files that serving needs: no code, and no weights in other formats."""


def download(
    id: ModelId, cache: Path, on_progress: Callable[[DownloadProgress], None], endpoint: str | None = None
) -> Path:
    """Downloads a snapshot and returns its folder; files of the cache are not downloaded again.

    Raises ModelNotFound if the hub does not have the id, ModelLoadFailed if the download fails. `on_progress` is called
    on the library's threads.
    """
    hub: Any = importlib.import_module("huggingface_hub")
    errors: Any = importlib.import_module("huggingface_hub.errors")
    try:
        folder = hub.snapshot_download(
            id,
            cache_dir=cache,
            allow_patterns=list(PATTERNS),
            tqdm_class=_progress_class(on_progress),
            endpoint=endpoint,
        )
    except errors.GatedRepoError as error:
        raise ModelLoadFailed(
            f"{id} is gated: accept its terms on its hub page and log in with `hf auth login`, or set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFound(
            f"the hub has no model {id}, or it is private; check the name, or log in with `hf auth login`",
            param="model",
        ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ModelLoadFailed(
            f"{id} is not on this machine and the hub cannot be reached: download it first, or name a local folder"
        ) from error
    except Exception as error:  # the transport may raise anything beside the library's own errors
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise ModelLoadFailed(f"downloading {id} failed ({type(error).__name__}: {reason})") from error
    return Path(folder)


def _progress_class(on_progress: Callable[[DownloadProgress], None]) -> Any:
    """A tqdm class that draws nothing and reports bytes."""
    base: Any = importlib.import_module("tqdm").tqdm

    def start(self: Any, *args: Any, **options: Any) -> None:
        options.pop("name", None)
        base.__init__(self, *args, **{**options, "file": io.StringIO(), "disable": False})

    def update(self: Any, n: float | None = 1) -> None:
        self.n += n or 0
        report(self)

    def report(self: Any, *_args: Any, **_options: Any) -> None:
        if self.unit == "B":
            on_progress(DownloadProgress(int(self.n), int(self.total or 0)))

    return type("Reporter", (base,), {"__init__": start, "update": update, "refresh": report})
