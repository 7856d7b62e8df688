"""A model's identity by content: a fast hash over its weights and the files that decide how they are used.

Two fine-tunes share every header and size, so only the bytes tell them apart. Each file's hash is remembered in a small
JSON file, so that a model is read for hashing once. An entry is valid for one path while size, inode, modification and
change time are equal: a replacement may have the size and the modification time of the old file (rsync, tar and cp -p
keep them), but not its inode, and writing into a file changes its change time.

A file of the hub's cache that is not remembered is not read: it is a link to a blob whose name is its SHA-256. A blob
that changed after the link was made (a program wrote through the link) is read by SHA-256 instead: intact content keeps
its digest.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import xxhash

from adapters.mlx.loading.files import weights_of
from adapters.mlx.loading.lora import ADAPTER_CONFIG, read_adapter
from adapters.mlx.runtime.json_files import read_entries, write_entries
from application.ports.compute import LoadReport, unreported
from domain.models.load_progress import LoadPhase

_CHUNK_BYTES = 8 * 2**20
_FILE_NAME = "weights-digests.json"
_MAX_REMEMBERED = 4096
_BLOB = re.compile("models--[^/]+/blobs/([0-9a-f]{64})")
_DIGEST_SIZES = 16, 32
_CONFIG_NAMES = ("config.json", "hf_quant_config.json")


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of a model's content. `weights`: of its files, and of its draft model's if it has one; `adapter`: of the
    LoRA adapter; empty without one."""

    weights: bytes
    adapter: bytes = b""


def digest_model(
    folder: Path,
    adapter: Path | None,
    draft: Path | None,
    memory_dir: Path | None,
    report: LoadReport = unreported,
) -> Digests:
    """Returns the digests of the folders of a model, an adapter and a draft model; see `digest_folder`."""
    applied = b""
    if adapter is not None:
        applied = _digest([adapter / ADAPTER_CONFIG, adapter / read_adapter(adapter).weights], memory_dir, report)
    weights = digest_folder(folder, memory_dir, report)
    if draft is not None:
        weights = xxhash.xxh3_128_digest(weights + digest_folder(draft, memory_dir, report))
    return Digests(weights, applied)


def digest_folder(folder: Path, memory_dir: Path | None, report: LoadReport = unreported) -> bytes:
    """Returns 16 bytes (XXH3-128) over the names and contents of the weight and configuration files. Raises OSError and
    ModelLoadFailed.

    `memory_dir`: the folder of the remembered hashes; None to compute all of them. Errors of that file are ignored.
    """
    configs = [folder / name for name in _CONFIG_NAMES if (folder / name).is_file()]
    return _digest([*sorted(configs), *(folder / name for name in weights_of(folder).all)], memory_dir, report)


def _digest(files: Iterable[Path], memory_dir: Path | None, report: LoadReport) -> bytes:
    """Entries: path to [size, inode, mtime_ns, ctime_ns, hex digest], the most recently computed last."""
    memory = None if memory_dir is None else memory_dir / _FILE_NAME
    entries = {} if memory is None else read_entries(memory)
    known: dict[Path, bytes] = {}
    unknown: dict[Path, list[int]] = {}
    for path in files:
        stamp = _stamp(path)
        digest = _remembered(entries.get(str(path.resolve())), stamp)
        if digest is None and path.lstat().st_ctime_ns >= stamp[-1]:
            digest = _name_of_blob(path)
        known[path] = digest or b""
        if digest is None:
            unknown[path] = stamp
    done, num_bytes = 0, sum(stamp[0] for stamp in unknown.values())

    def read(count: int) -> None:
        nonlocal done
        done += count
        report(LoadPhase.HASHING, done, num_bytes)

    for path, stamp in unknown.items():
        read(0)
        known[path] = _digest_file(path, read)
        entries.pop(str(path.resolve()), None)
        if _stamp(path) == stamp:  # the file was not written to in between
            entries[str(path.resolve())] = [*stamp, known[path].hex()]
    if memory is not None and unknown:
        write_entries(memory, entries, _MAX_REMEMBERED)
    total = xxhash.xxh3_128()
    for path, digest in known.items():
        total.update(path.name.encode() + b"\0" + digest)
    return total.digest()


def _name_of_blob(path: Path) -> bytes | None:
    """The SHA-256 in the name of the blob that a `models--ORG--NAME/snapshots/COMMIT/FILE` of the hub's cache links to,
    which the hub's library may link to a place outside; None for any other file."""
    if not path.is_symlink():
        return None
    commit = path.parent.resolve()
    entry, blob = commit.parent.parent, Path(os.path.normpath(commit / path.readlink()))
    found = _BLOB.fullmatch("/".join(blob.parts[-3:]))
    is_of_snapshot = commit.parent.name == "snapshots" and blob.parent.parent == entry
    return bytes.fromhex(found[1]) if found is not None and is_of_snapshot else None


def _remembered(entry: object, stamp: list[int]) -> bytes | None:
    """The digest of an entry for a file of this stamp; None if the entry is invalid."""
    *known, text = cast(list[object], entry) if isinstance(entry, list) and entry else [None]
    if known != stamp or not isinstance(text, str):
        return None
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        return None
    return digest if len(digest) in _DIGEST_SIZES else None


def _digest_file(path: Path, read: Callable[[int], None]) -> bytes:
    """`read`: called with the number of further bytes read. The digest of a blob is a SHA-256, like its name."""
    hasher = xxhash.xxh3_128() if _name_of_blob(path) is None else hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
            read(count)
    return hasher.digest()


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]
