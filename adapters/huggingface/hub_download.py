"""Downloads of hub models into huggingface_hub's own cache, with progress, resumption and actionable errors.

huggingface_hub starts a file anew when its download was interrupted, names it as the server says and does not hash it.
Files are therefore fetched here, into `blobs/BLOB.part`, which is continued, and get a digest as their name only when
they have it. No name of the hub's becomes a path unchecked.
"""

import fcntl
import hashlib
import importlib
import io
import os
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from adapters.huggingface.model_folder import cache_entry
from application.ports.model_repository import DownloadProgress
from domain.errors import DomainError, ModelLoadFailed, ModelNotFound
from domain.ids import ModelId
from domain.models.weight_files import INDEX, may_be_weights, weight_files
from domain.printable import printable

PATTERNS = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken", "*.jsonl")
"""The files that serving needs beside the weights: no code, and no weights in other formats."""

MAX_INDEX_BYTES = 64 * 2**20
"""More than the index of any model has. It is read into memory before weights are fetched."""

MAX_RESUMABLE_BYTES = 50_000_000_000
"""The library's bound on a file over plain HTTP; larger ones come by its protocol Xet."""

CHUNK_BYTES = 1 << 18
"""The bytes between two reports of progress, which can end a download: the library's 10 MB take long on slow lines."""

UNREACHABLE = ("ConnectError", "ConnectTimeout")
"""Errors of the library's transport, which is httpx or one that succeeds it."""

_COMMIT = re.compile("[0-9a-f]{40}")
_BLOB = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
"""The SHA-1 of a git object, or the SHA-256 of a file that git-lfs keeps."""

_SHA256_DIGITS = 64


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
        return may_be_weights(self.path)


@dataclass(frozen=True, slots=True)
class HubModel:
    """A model of the hub at one commit. `model_type`: of its configuration, empty if the hub does not say it."""

    commit: str
    files: Sequence[HubFile]
    model_type: str = ""

    @property
    def missing_bytes(self) -> int:
        return sum(file.num_bytes - file.present_bytes for file in self.files)

    @property
    def weight_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files if file.is_weights)


def look_up(id: ModelId, cache: Path, endpoint: str | None = None) -> HubModel:
    """Asks the hub for the files of a model, and fetches its index of weights. Raises ModelNotFound and
    ModelLoadFailed, also for weights that the hub does not have whole."""
    hub: Any = importlib.import_module("huggingface_hub")
    entry = cache_entry(cache, id)
    blobs = entry / "blobs"
    with in_words(id):
        found = hub.HfApi(endpoint=endpoint).model_info(id, files_metadata=True)
        commit = _checked(str(found.sha), _COMMIT.fullmatch(str(found.sha)) is not None, "a commit")
        files: list[HubFile] = []
        for one in found.siblings or ():
            if may_be_weights(one.rfilename) or any(fnmatch(one.rfilename, pattern) for pattern in PATTERNS):
                blob = str(one.lfs.sha256 if one.lfs else one.blob_id)
                blob = blob if _BLOB.fullmatch(blob) else ""  # it becomes a file's name
                path = _checked(one.rfilename, _is_below(one.rfilename), "a file of the model")
                num_bytes = int(one.size or 0)
                is_moved = _is_moved(entry / "snapshots" / commit / path, num_bytes)
                is_here = is_moved or (bool(blob) and (blobs / blob).is_file())
                present = num_bytes if is_here else min(num_bytes, _size(_part(blobs, blob)))
                files.append(HubFile(path, blob, num_bytes, is_here, present))
        text = None
        for at, file in enumerate(files):
            if file.path == INDEX:
                _checked(INDEX, file.num_bytes <= MAX_INDEX_BYTES, f"an index of {file.num_bytes} bytes,")
                text = _read(id, file, entry, commit, endpoint)
                files[at] = replace(file, is_here=True, present_bytes=file.num_bytes)
        chosen = weight_files([file.path for file in files], text)
        if chosen.missing:
            raise ModelLoadFailed(f"{id} cannot be served, so it is not downloaded: {chosen.missing} on the hub")
        config: Mapping[str, Any] = found.config or {}
        model_type = str(config.get("model_type") or "")
        return HubModel(commit, [file for file in files if not file.is_weights or file.path in chosen.all], model_type)


def _read(id: ModelId, file: HubFile, entry: Path, commit: str, endpoint: str | None) -> str:
    """The text of a small file, fetched into the cache if it is not there."""
    moved, blob = entry / "snapshots" / commit / file.path, entry / "blobs" / file.blob
    if not file.is_here:
        url = importlib.import_module("huggingface_hub").hf_hub_url(id, file.path, revision=commit, endpoint=endpoint)
        _fetch(id, file, url, entry / "blobs", _progress_class(lambda _: None, 0, 0))
    return (moved if moved.is_file() else blob).read_text(encoding="utf-8", errors="replace")


def download(
    id: ModelId, cache: Path, on_progress: Callable[[DownloadProgress], None], endpoint: str | None = None
) -> Path:
    """Downloads a snapshot and returns its folder; what the cache has is not downloaded again, and a file is continued
    where an earlier download stopped.

    Raises ModelNotFound if the hub does not have the id, ModelLoadFailed if the download fails or a file has another
    digest than the hub says.
    """
    hub: Any = importlib.import_module("huggingface_hub")
    found, entry = look_up(id, cache, endpoint), cache_entry(cache, id)
    total, done = sum(file.num_bytes for file in found.files), sum(file.present_bytes for file in found.files)
    folder = entry / "snapshots" / found.commit
    with in_words(id):
        on_progress(DownloadProgress(done, total))
        for file in found.files:
            if not file.is_here:
                done -= file.present_bytes
                url = hub.hf_hub_url(id, file.path, revision=found.commit, endpoint=endpoint)
                _fetch(id, file, url, entry / "blobs", _progress_class(on_progress, done, total))
                done += file.num_bytes
        for file in found.files:
            _link(folder / file.path, entry / "blobs" / file.blob)
        (entry / "refs").mkdir(parents=True, exist_ok=True)
        (entry / "refs/main").write_text(found.commit)
    return folder


def _fetch(id: ModelId, file: HubFile, url: str, blobs: Path, progress_class: Any) -> None:
    """Fetches one file, or the rest of it, to its place in the cache."""
    library: Any = importlib.import_module("huggingface_hub.file_download")
    if not file.blob:
        raise ModelLoadFailed(f"{id}: the hub says no digest of {file.path}: use a hub or mirror that says it")
    blobs.mkdir(parents=True, exist_ok=True)
    part, headers = _part(blobs, file.blob), library.build_hf_headers()
    with part.open("ab") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ModelLoadFailed(f"{id} is being downloaded by another process: wait for it") from None
        if stream.tell() > file.num_bytes:  # not of this file
            stream.truncate(0)
            stream.seek(0)
        options = {"headers": headers, "expected_size": file.num_bytes, "tqdm_class": progress_class}
        if file.num_bytes > MAX_RESUMABLE_BYTES:
            xet = library.get_hf_file_metadata(url, headers=headers).xet_file_data
            library.xet_get(incomplete_path=part, xet_file_data=xet, **options)
        else:
            library.constants.DOWNLOAD_CHUNK_SIZE = min(library.constants.DOWNLOAD_CHUNK_SIZE, CHUNK_BYTES)
            library.http_get(url, stream, resume_size=stream.tell(), **options)
        stream.flush()
        if _digest(part, file.blob) != file.blob:
            part.unlink()
            raise ModelLoadFailed(
                f"{id}: {file.path} has another digest than the hub says: download it again, or from another mirror"
            )
        part.replace(blobs / file.blob)


def _link(link: Path, blob: Path) -> None:
    """Makes a snapshot's link to a file of the cache. On a volume without links the file itself moves there."""
    target = os.path.relpath(blob, link.parent)
    if not blob.is_file() or (link.is_symlink() and os.readlink(link) == target):
        return
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    try:
        link.symlink_to(target)
    except OSError:
        blob.replace(link)


def _is_moved(link: Path, num_bytes: int) -> bool:
    return not link.is_symlink() and link.is_file() and _size(link) == num_bytes


def _is_below(path: str) -> bool:
    """Returns whether a name of the hub's is a path within a folder."""
    parts = PurePosixPath(path)
    return str(parts) == path and path.isprintable() and not parts.is_absolute() and ".." not in parts.parts


def _checked(name: str, is_valid: bool, kind: str) -> str:
    if not is_valid:
        raise ModelLoadFailed(f"the hub names {kind} {printable(name)}, which no hub does: use another hub or mirror")
    return name


def _part(blobs: Path, blob: str) -> Path:
    return blobs / f"{blob}.part"


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _digest(path: Path, blob: str) -> str:
    """The digest of a file, of the kind that `blob` is."""
    digest = hashlib.sha256()
    if len(blob) != _SHA256_DIGITS:
        digest = hashlib.sha1(b"blob %d\0" % _size(path), usedforsecurity=False)
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: digest).hexdigest()


@contextmanager
def in_words(id: str) -> Generator[None]:
    """A context that raises the library's errors as errors of the domain. `id`: of a model; empty for a search."""
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
            address = importlib.import_module("huggingface_hub.constants").ENDPOINT
            instead = "download it first, name a local folder, or name" if id else "look at the network, or name"
            raise ModelLoadFailed(
                f"{f'{id} is not on this machine and ' if id else ''}the hub cannot be reached at {address}: {instead}"
                " a mirror in HF_ENDPOINT"
            ) from error
        reason = str(error).strip().split("\n", maxsplit=1)[0]
        raise ModelLoadFailed(
            f"{f'downloading {id}' if id else 'the search'} failed ({type(error).__name__}: {reason})"
        ) from error


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
