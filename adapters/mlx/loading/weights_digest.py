"""A model's identity by content: a fast hash over its weights and the files that decide how they are used.

Two fine-tunes share every header and size, so nothing less than the bytes will do. Each file's hash is remembered in a
small JSON file, so that a model is read for hashing once in its life. What is remembered holds for one path as long as
size, inode, modification and change time are what they were: whoever replaces a file may give it the size and the
modification time of the old one (rsync, tar and cp -p do), but not its inode, and whoever writes into it moves its
change time.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard, cast

import xxhash

from adapters.mlx.loading.adapter_folder import CONFIG_NAME, WEIGHTS_NAME
from adapters.mlx.runtime.remembered import keep, recalled

_CHUNK_BYTES = 8 * 2**20
_MEMORY_NAME = "weights-digests.json"
_MAX_REMEMBERED = 4096
_CONFIG_NAMES = ("config.json", "hf_quant_config.json")


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of a model's content. `adapter`: of the adapter over the weights; empty without one."""

    weights: bytes
    adapter: bytes = b""


def digest_model(folder: Path, adapter: Path | None, memory_dir: Path | None) -> Digests:
    """As `digest_folder`, of a model's folder and an adapter's."""
    laid = b"" if adapter is None else _digest_files([adapter / CONFIG_NAME, adapter / WEIGHTS_NAME], memory_dir)
    return Digests(digest_folder(folder, memory_dir), laid)


def digest_folder(folder: Path, memory_dir: Path | None) -> bytes:
    """16 bytes (XXH3-128) over the names and contents of the weight and configuration files. Raises OSError.

    `memory_dir`: where hashes are remembered; None to compute them anew. Trouble with the memory is not an error.
    """
    return _digest_files(_files(folder), memory_dir)


def _digest_files(files: Iterable[Path], memory_dir: Path | None) -> bytes:
    memory = _Memory(None if memory_dir is None else memory_dir / _MEMORY_NAME)
    total = xxhash.xxh3_128()
    for path in files:
        total.update(path.name.encode() + b"\0" + memory.digest(path))
    memory.save()
    return total.digest()


def _files(folder: Path) -> list[Path]:
    configs = [folder / name for name in _CONFIG_NAMES if (folder / name).is_file()]
    return sorted(configs) + sorted(folder.glob("model*.safetensors"))


def _digest_file(path: Path) -> bytes:
    hasher = xxhash.xxh3_128()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            hasher.update(buffer[:count])
    return hasher.digest()


def _stamp(path: Path) -> list[int]:
    stat = path.stat()
    return [stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns]


class _Memory:
    """Remembered hashes: path to [size, inode, mtime_ns, ctime_ns, hex digest], the most recently added last."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._entries: dict[str, list[int | str]] = {} if path is None else _load(path)
        self._is_changed = False

    def digest(self, path: Path) -> bytes:
        real = path.resolve()
        stamp = _stamp(real)
        known = self._entries.get(str(real))
        if known is not None and known[:-1] == stamp:
            return bytes.fromhex(str(known[-1]))
        digest = _digest_file(real)
        self._entries.pop(str(real), None)
        if _stamp(real) == stamp:  # not written to meanwhile
            self._entries[str(real)] = [*stamp, digest.hex()]
        self._is_changed = True
        return digest

    def save(self) -> None:
        if self._path is not None and self._is_changed:
            keep(self._path, self._entries, _MAX_REMEMBERED)


def _load(path: Path) -> dict[str, list[int | str]]:
    return {key: value for key, value in recalled(path).items() if _is_entry(value)}


def _is_entry(value: object) -> TypeGuard[list[int | str]]:
    if not isinstance(value, list) or len(cast(list[object], value)) != 5:
        return False
    *stamp, digest = cast(list[object], value)
    return all(isinstance(number, int) for number in stamp) and isinstance(digest, str) and _is_hex(digest)


def _is_hex(text: str) -> bool:
    try:
        return len(bytes.fromhex(text)) == 16
    except ValueError:
        return False
