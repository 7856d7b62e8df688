"""Folders that hold a whole model in Hugging Face form: embedded models, local folders, and the hub's cache.

A model has config.json, all weights in safetensors, and a tokenizer. Folders are judged by names and a few small files,
and those with a tower by the headers of their weights, so that listing many models is cheap. The hub's cache is read by
its layout, without huggingface_hub and without the network:

    models--ORG--NAME/refs/main                      the commit of the branch when it was last seen
    models--ORG--NAME/snapshots/COMMIT/config.json   links to blobs; a dangling one is an unfinished download
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from domain.ids import ModelId
from domain.models.model_files import ModelFiles
from domain.models.weight_files import INDEX, WeightFiles, weight_files

EMBEDDED_IDS = (ModelId("cairn-demo"), ModelId("cairn-demo-hybrid"))
"""The chat models that come with Cairn. `cairn-demo`: attention only. `cairn-demo-hybrid`: also gated delta."""

SEER_ID = ModelId("cairn-demo-vision")
"""The model that sees images that comes with Cairn."""

_CHAT_NOTE = (
    "Comes with Cairn to try it out: some 12 million parameters, trained on generated chats. It recalls what it is"
    " told, extracts JSON, calls tools and makes small talk; it knows nothing of the world and is no assistant."
)
_EMBED_NOTE = "Comes with Cairn to try it out: 4 million parameters, which are no match for a real embedding model."
_SEER_NOTE = (
    "Comes with Cairn to try it out: 5 million parameters, trained on drawn pictures. It names shapes and colours,"
    " counts them, reads words and numbers and compares bars; it knows no photographs and is no assistant."
)

_OTHERS = {ModelId("cairn-demo-embed"): _EMBED_NOTE, SEER_ID: _SEER_NOTE}
EMBEDDED_NOTES = {**dict.fromkeys(EMBEDDED_IDS, _CHAT_NOTE), **_OTHERS}
"""All models that come with Cairn, each with a short form of its card."""

_EMBEDDED = Path(__file__).parent / "embedded"
_TOKENIZER_PATTERNS = ("tokenizer.json", "tokenizer.model", "*.tiktoken", "tiktoken.model", "vocab.json")
_PROCESSORS = ("preprocessor_config.json", "processor_config.json")
_PREFIX = "models--"

_TOWER = (b"vision", b"visual")
"""Parts of the names of a tower's weights."""

_LENGTH_BYTES, _MAX_HEADER_BYTES = 8, 100 * 2**20
"""A safetensors file begins with its header's length."""


def embedded_folder(id: ModelId) -> Path | None:
    """The folder of an embedded model; None for any other id."""
    return _EMBEDDED / id if id in EMBEDDED_NOTES else None


def missing_from(folder: Path) -> str:
    """The reason why the folder cannot be served, as `it has no ...`; empty if it can."""
    if not (folder / "config.json").is_file():
        return "it has no config.json"
    config = read_config(folder)
    if not config.get("model_type"):
        return "its config.json has no model_type"
    if config.get("model_file") is not None:
        return "its config.json requests the execution of a Python file (model_file), which Cairn never does"
    try:
        absent = weights_of(folder).missing
    except OSError as error:
        absent = f"it cannot be read: {error}"
    if absent:
        return absent
    if not any(path.is_file() for pattern in _TOKENIZER_PATTERNS for path in folder.glob(pattern)):
        return "it has no tokenizer"
    return ""


def read_config(folder: Path) -> Mapping[str, object]:
    """The model's config.json; empty if it is not a readable JSON object."""
    return _read_object(folder / "config.json")


def read_files(folder: Path, name: str) -> ModelFiles:
    """Everything that says which requests the model answers."""
    found = _read_json(folder / "modules.json")
    modules = cast("list[object]", found) if isinstance(found, list) else []
    config, prepares_images = read_config(folder), any((folder / name).is_file() for name in _PROCESSORS)
    return ModelFiles(
        name,
        config,
        [cast("dict[str, Any]", module) for module in modules if isinstance(module, dict)],
        _read_object(next(folder.glob("*_Pooling/config.json"), folder / "1_Pooling")),
        _read_object(folder / "config_sentence_transformers.json"),
        _read_text(folder / "chat_template.jinja"),
        prepares_images,
        _read_object(folder / "sentence_bert_config.json"),
        not (prepares_images and config.get("vision_config")) or _has_tower(folder),
    )


def _has_tower(folder: Path) -> bool:
    """Returns False if no weight of the folder is of images: conversions for text keep everything else that says so."""
    try:
        for name in weights_of(folder).names:
            with (folder / name).open("rb") as file:
                length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
                header = file.read(min(length, _MAX_HEADER_BYTES))
                if len(header) < length or any(part in header for part in _TOWER):
                    return True
    except OSError:
        return True
    return False


def newest_file_s(folder: Path) -> int:
    """The modification time of the folder's newest file, as Unix time; 0 for an unreadable folder."""
    try:
        return int(max((path.stat().st_mtime for path in folder.iterdir() if path.is_file()), default=0))
    except OSError:
        return 0


def weight_file_bytes(folder: Path) -> int:
    """The length of all weight files; 0 for an unreadable folder."""
    try:
        return sum((folder / name).stat().st_size for name in weights_of(folder).all)
    except OSError:
        return 0


def weights_of(folder: Path) -> WeightFiles:
    """The names of the folder's weight files; a dangling link is no file. Raises OSError."""
    names = [path.name for path in folder.iterdir() if path.is_file()]
    return weight_files(names, _read_text(folder / INDEX) if INDEX in names else None)


def _read_object(path: Path) -> Mapping[str, object]:
    value = _read_json(path)
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _read_json(path: Path) -> object:
    try:
        return json.loads(_read_text(path))
    except (ValueError, RecursionError):
        return None


def _read_text(path: Path) -> str:
    """The text of a file; empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""


# ---- the hub's cache -----------------------------------------------------------------------------------------------


def cached_models(cache: Path) -> Iterator[tuple[ModelId, Path]]:
    """Every complete model of the hub's cache, with the snapshot to load."""
    for entry in sorted(cache.glob(f"{_PREFIX}*--*")):
        organisation, _, name = entry.name.removeprefix(_PREFIX).partition("--")
        snapshot = _best_snapshot(entry)
        if snapshot is not None:
            yield ModelId(f"{organisation}/{name}"), snapshot


def cached_folder(cache: Path, id: ModelId) -> Path | None:
    """The complete snapshot of a hub id (ORG/NAME, checked by the caller); None if there is none."""
    return _best_snapshot(cache_entry(cache, id))


def cache_entry(cache: Path, id: ModelId) -> Path:
    """The folder of a hub id (ORG/NAME, checked by the caller) in the cache."""
    return cache / (_PREFIX + id.replace("/", "--"))


def _best_snapshot(entry: Path) -> Path | None:
    """The main branch's snapshot if it is complete, otherwise the newest complete one."""
    snapshots = entry / "snapshots"
    try:
        main = snapshots / (entry / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        main = None
    if main is not None and main.parent == snapshots and not missing_from(main):
        return main
    complete = [folder for folder in snapshots.glob("*") if not missing_from(folder)]
    return max(complete, key=newest_file_s, default=None)
