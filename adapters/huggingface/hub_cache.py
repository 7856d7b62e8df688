"""Upkeep of the hub's cache: the size of a model in it, and its removal. Nothing outside the cache is touched."""

import shutil
from pathlib import Path

from adapters.huggingface.model_folder import cache_entry
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.printable import printable

_LOCKS = ".locks"


def default_cache() -> Path:
    """The cache that huggingface_hub uses, as its variables say."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def held_bytes(cache: Path, id: ModelId) -> int:
    """The bytes that a model takes, unfinished downloads included. `id`: ORG/NAME. Raises ModelNotFound if the cache
    has no folder of it."""
    return sum(path.stat().st_size for path in _entry(cache, id).rglob("*") if path.is_file() and not path.is_symlink())


def remove(cache: Path, id: ModelId) -> Path:
    """Removes a model with its unfinished downloads, and returns the folder that was removed. Raises ModelNotFound,
    OSError."""
    entry = _entry(cache, id)
    shutil.rmtree(entry)
    shutil.rmtree(cache / _LOCKS / entry.name, ignore_errors=True)
    return entry


def _entry(cache: Path, id: ModelId) -> Path:
    """A link instead of a folder is not followed. `--` stands for the slash in names of folders."""
    entry = cache_entry(cache, id)
    if "--" in id or entry.parent != cache or entry.is_symlink() or not entry.is_dir():
        raise ModelNotFound(f"the hub's cache in {cache} has no model {printable(id)}", param="model")
    return entry
