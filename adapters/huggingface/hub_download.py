"""Downloads of hub models into huggingface_hub's own cache, with progress, resumption and actionable errors.

huggingface_hub starts a file anew when its download was interrupted. Files of weights are therefore fetched here, into
`blobs/BLOB.part`, which is continued; the library finds them finished and fetches the rest.
"""

import fcntl
import hashlib
import importlib
import io
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, BinaryIO

from adapters.huggingface.model_folder import cache_entry
from application.ports.model_repository import DownloadProgress
from domain.errors import DomainError, ModelLoadFailed, ModelNotFound
from domain.ids import ModelId

PATTERNS = ("*.json", "model*.safetensors", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.jsonl")
"""The files that serving needs: no code, and no weights in other formats."""

WEIGHTS = "model*.safetensors"
MAX_RESUMABLE_BYTES = 50_000_000_000
"""The library's bound on a file over plain HTTP; it fetches larger ones in its own way."""

UNREACHABLE = ("ConnectError", "ConnectTimeout")
"""Errors of the library's transport, which is httpx or one that succeeds it."""

_BLOB = re.compile("[0-9a-f]{40,64}")
_SHA256_DIGITS = 64
_CHUNK = 1 << 22


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a model that serving needs. `blob`: its name in the cache; empty if the hub does not say it. `is_here`:
    whole; `present_bytes`: those that are there."""

    path: str
    blob: str
    num_bytes: int
    is_here: bool
    present_bytes: int

    @property
    def is_weights(self) -> bool:
        return fnmatch(self.path, WEIGHTS)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub at one commit."""

    commit: str
    files: Sequence[HubFile]

    @property
    def missing_bytes(self) -> int:
        return sum(file.num_bytes - file.present_bytes for file in self.files)

    @property
    def weight_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files if file.is_weights)


def look_up(id: ModelId, cache: Path, endpoint: str | None = None) -> HubModel:
    """Asks the hub for the files of a model. Raises ModelNotFound and ModelLoadFailed."""
    hub: Any = importlib.import_module("huggingface_hub")
    blobs = cache_entry(cache, id) / "blobs"
    with _in_words(id):
        found = hub.HfApi(endpoint=endpoint).model_info(id, files_metadata=True)
        files: list[HubFile] = []
        for one in found.siblings or ():
            if any(fnmatch(one.rfilename, pattern) for pattern in PATTERNS):
                blob = str(one.lfs.sha256 if one.lfs else one.blob_id)
                blob = blob if _BLOB.fullmatch(blob) else ""  # it becomes a file's name
                num_bytes = int(one.size or 0)
                is_here = bool(blob) and (blobs / blob).is_file()
                present = num_bytes if is_here else min(num_bytes, _size(_part(blobs, blob)))
                files.append(HubFile(one.rfilename, blob, num_bytes, is_here, present))
        return HubModel(str(found.sha), files)


def download(
    id: ModelId, cache: Path, on_progress: Callable[[DownloadProgress], None], endpoint: str | None = None
) -> Path:
    """Downloads a snapshot and returns its folder; what the cache has is not downloaded again, and a file of weights is
    continued where an earlier download stopped.

    Raises ModelNotFound if the hub does not have the id, ModelLoadFailed if the download fails. `on_progress` is called
    on the library's threads.
    """
    hub: Any = importlib.import_module("huggingface_hub")
    found = look_up(id, cache, endpoint)
    total, done = sum(file.num_bytes for file in found.files), sum(file.present_bytes for file in found.files)
    with _in_words(id):
        for file in found.files:
            if file.blob and file.is_weights and not file.is_here and file.num_bytes <= MAX_RESUMABLE_BYTES:
                before = done - file.present_bytes
                url = hub.hf_hub_url(id, file.path, revision=found.commit, endpoint=endpoint)
                _fetch(id, file, url, cache, _progress_class(on_progress, before, total))
                done = before + file.num_bytes
        folder = hub.snapshot_download(
            id,
            cache_dir=cache,
            allow_patterns=list(PATTERNS),
            tqdm_class=_progress_class(on_progress, done, total),
            endpoint=endpoint,
        )
    return Path(folder)


def _fetch(id: ModelId, file: HubFile, url: str, cache: Path, progress_class: Any) -> None:
    """Fetches one file, or the rest of it, to its place in the cache."""
    library: Any = importlib.import_module("huggingface_hub.file_download")
    blobs = cache_entry(cache, id) / "blobs"
    blobs.mkdir(parents=True, exist_ok=True)
    part = _part(blobs, file.blob)
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelLoadFailed(f"{id} is being downloaded by another process: wait for it") from None
        if stream.tell() > file.num_bytes:  # not of this file
            stream.truncate(0)
            stream.seek(0)
        begun = stream.tell()
        library.http_get(
            url,
            stream,
            resume_size=begun,
            headers=library.build_hf_headers(),
            expected_size=file.num_bytes,
            tqdm_class=progress_class,
        )
        if begun and len(file.blob) == _SHA256_DIGITS and _sha256(part) != file.blob:
            part.unlink()
            raise ModelLoadFailed(f"{id}: {file.path} was damaged when it was continued; download it again")
        part.replace(blobs / file.blob)


def _part(blobs: Path, blob: str) -> Path:
    return blobs / f"{blob}.part"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        _feed(stream, digest.update)
    return digest.hexdigest()


def _feed(stream: BinaryIO, take: Callable[[bytes], None]) -> None:
    while data := stream.read(_CHUNK):
        take(data)


@contextmanager
def _in_words(id: ModelId) -> Generator[None]:
    """A context that raises the library's errors as errors of the domain."""
    errors: Any = importlib.import_module("huggingface_hub.errors")
    try:
        yield
    except DomainError:
        raise
    except errors.GatedRepoError as error:
        raise ModelLoadFailed(
            f"{id} is gated: accept its terms on its hub page and log in with `hf auth login`, or set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise ModelNotFound(
            f"the hub has no model {id}, or it is private; check the name, or log in with `hf auth login`",
            param="model",
        ) from error
    except Exception as error:  # the transport may raise anything beside the library's own errors
        if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)) or (
            type(error).__name__ in UNREACHABLE
        ):
            raise ModelLoadFailed(
                f"{id} is not on this machine and the hub cannot be reached: download it first, or name a local folder"
            ) from error
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise ModelLoadFailed(f"downloading {id} failed ({type(error).__name__}: {reason})") from error


def _progress_class(on_progress: Callable[[DownloadProgress], None], before: int, total: int) -> Any:
    """A tqdm class that draws nothing and reports bytes. `before`: bytes of other files, of `total`."""
    base: Any = importlib.import_module("tqdm").tqdm

    def start(self: Any, *args: Any, **options: Any) -> None:
        options.pop("name", None)
        base.__init__(self, *args, **{**options, "file": io.StringIO(), "disable": False})

    def update(self: Any, n: float | None = 1) -> None:
        self.n += n or 0
        report(self)

    def report(self: Any, *_args: Any, **_options: Any) -> None:
        if self.unit == "B":
            on_progress(DownloadProgress(min(total, before + int(self.n)), total))

    return type("Reporter", (base,), {"__init__": start, "update": update, "refresh": report})
