"""The quantised copies in a folder, by the receipt that each has, and what stopped jobs left there."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from application.ports.quantiser import RECEIPT, QuantQuality, name_of_partial
from domain.printable import printable

_CACHED = "models--"


@dataclass(frozen=True, slots=True)
class QuantCopy:
    """A copy. `is_partial`: what a stopped job left, to be continued or removed; it has no more than a size. `source`:
    the model that it was made of, by its folder; `note`: why its quality was not measured."""

    name: str
    folder: Path
    num_bytes: int
    is_partial: bool
    source: str = ""
    recipe: str = ""
    bits_per_weight: float | None = None
    quality: QuantQuality | None = None
    note: str = ""


def copies_in(directory: str) -> list[QuantCopy]:
    """Returns the copies in a folder, by name. Skips what is none or cannot be read, and links. Blocks on the disk."""
    folders = Path(directory).glob("*") if directory else ()
    copies = [copy for folder in folders if (copy := _copy(folder)) is not None]
    return sorted(copies, key=lambda copy: (copy.name, copy.is_partial))


def is_same_folder(one: str, other: Path) -> bool:
    """Blocks on the disk."""
    return os.path.realpath(one) == os.path.realpath(other)


def _copy(folder: Path) -> QuantCopy | None:
    partial = name_of_partial(folder.name)
    receipt: Mapping[str, Any] | None = {} if partial else _receipt(folder / RECEIPT)
    if folder.is_symlink() or not folder.is_dir() or receipt is None:
        return None
    num_bytes = sum(map(_size, folder.rglob("*")))
    if partial:
        return QuantCopy(partial, folder, num_bytes, is_partial=True)
    source, bits = _object(receipt.get("source")), receipt.get("bits_per_weight")
    return QuantCopy(
        folder.name,
        folder,
        num_bytes,
        is_partial=False,
        source=_model(_text(source.get("folder"))),
        recipe=_text(receipt.get("recipe")),
        bits_per_weight=bits if isinstance(bits, float) else None,
        quality=_quality(_object(receipt.get("quality"))),
        note=_text(receipt.get("note")),
    )


def _model(folder: str) -> str:
    """The name of a model's folder, also of one in the hub's cache (`models--ORG--NAME/snapshots/COMMIT`)."""
    path = Path(folder)
    cached = next((part for part in path.parts if part.startswith(_CACHED)), "")
    return cached.removeprefix(_CACHED).replace("--", "/") or path.name


def _size(path: Path) -> int:
    """Files that a job renames or removes meanwhile count as empty."""
    try:
        return 0 if path.is_dir() else path.lstat().st_size
    except OSError:
        return 0


def _receipt(path: Path) -> Mapping[str, Any] | None:
    try:
        receipt: object = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", receipt) if isinstance(receipt, dict) else None


def _quality(found: Mapping[str, Any]) -> QuantQuality | None:
    values = {field.name: found.get(field.name) for field in fields(QuantQuality)}
    return QuantQuality(**cast("dict[str, Any]", values)) if all(map(_is_number, values.values())) else None


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _text(value: object) -> str:
    return printable(value) if isinstance(value, str) else ""


def _object(value: object) -> Mapping[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
