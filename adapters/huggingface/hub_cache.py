"""Models in huggingface_hub's own cache, read from its folder layout without the library and without the network.

models--ORG--NAME/refs/main                      the commit that the branch pointed at when last seen
models--ORG--NAME/snapshots/COMMIT/config.json   links to blobs; a dangling one is an unfinished download
"""

from collections.abc import Iterator
from pathlib import Path

from adapters.huggingface.model_folder import missing_from, newest_file_s, read_config
from domain.ids import ModelId

_PREFIX = "models--"
_GENERATIVE = ("ForCausalLM", "ForConditionalGeneration", "LMHeadModel")


def cached_models(cache: Path) -> Iterator[tuple[ModelId, Path]]:
    """Every complete generative model in the cache, with the snapshot to load."""
    for entry in sorted(cache.glob(f"{_PREFIX}*--*")):
        organisation, _, name = entry.name.removeprefix(_PREFIX).partition("--")
        snapshot = _best_snapshot(entry)
        if snapshot is not None and _is_generative(snapshot):
            yield ModelId(f"{organisation}/{name}"), snapshot


def cached_folder(cache: Path, id: ModelId) -> Path | None:
    """The complete snapshot of one hub id (ORG/NAME, checked by the caller), if there is one."""
    return _best_snapshot(cache / (_PREFIX + id.replace("/", "--")))


def _best_snapshot(entry: Path) -> Path | None:
    """The main branch's snapshot where that is complete, otherwise the newest complete one."""
    snapshots = entry / "snapshots"
    try:
        main = snapshots / (entry / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        main = None
    if main is not None and main.parent == snapshots and not missing_from(main):
        return main
    complete = [folder for folder in snapshots.glob("*") if not missing_from(folder)]
    return max(complete, key=newest_file_s, default=None)


def _is_generative(folder: Path) -> bool:
    named = read_config(folder).get("architectures")
    return not isinstance(named, list) or not named or str(named[0]).endswith(_GENERATIVE)  # pyright: ignore[reportUnknownArgumentType]
