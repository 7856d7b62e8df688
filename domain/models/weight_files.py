"""The weight files of a model folder, decided by the names of its files and by its index. Pure.

the index names files that are all there        these
the index names an absent file                  the one other complete set of `model*.safetensors`, with a note:
                                                conversions keep the source's index; without one, the file is missing
no index, or an empty one                       `model*.safetensors`, or the only other `*.safetensors`
beside them                                     files of a head (`mtp.safetensors`), for drafting only: nothing is
                                                missing without them

A set is complete if it is one file, or if all of `model-00001-of-0000N` are there, so that an interrupted download is
recognised with and without an index. Files in other forms (`consolidated`), adapters and subfolders are never weights.
"""

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, cast

INDEX = "model.safetensors.index.json"
SUFFIX = ".safetensors"

_SHARD = re.compile(r"(.+)-(\d{1,6})-of-(\d{1,6})\.safetensors")
_NEVER = ("consolidated", "adapter")


@dataclass(frozen=True, slots=True)
class WeightFiles:
    """Names of files. `names`: of the network, sorted. `heads`: beside them. `missing`: the reason why the weights are
    not there, as `it has no ...`; empty if they are. `note`: a deviation from the index."""

    names: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    missing: str = ""
    note: str = ""

    @property
    def all(self) -> tuple[str, ...]:
        return tuple(sorted((*self.names, *self.heads)))


def weight_files(present: Iterable[str], index: str | None) -> WeightFiles:
    """`present`: names of the folder's files; `index`: the text of `model.safetensors.index.json`, None without one."""
    found = {name for name in present if may_be_weights(name)}
    named = set[str]() if index is None else _named_by(index)
    if named is None:
        return WeightFiles(missing=f"its {INDEX} has no weight_map, or names entries that are not files of the folder")
    heads = tuple(sorted(filter(_is_of_head, found)))
    found.difference_update(heads)
    named = {name for name in named if not _is_of_head(name)}
    if named and named <= found:
        return WeightFiles(tuple(sorted(named)), heads)
    others = {name for name in found - named if name.startswith("model")}
    if not named:
        chosen = others or (found if len(found) == 1 else set[str]())
        if gap := _gap(chosen):
            return WeightFiles(missing=f"weights are missing ({gap})")
        return WeightFiles(tuple(sorted(chosen)), heads, "" if chosen else f"it has no weights (model*{SUFFIX})")
    whole = [members for members in _sets(others) if not _gap(members)]
    absent = ", ".join(sorted(named - found)[:3])
    if len(whole) != 1 or named & found:
        return WeightFiles(missing=f"weights are missing ({absent})")
    note = f"its {INDEX} names {absent}, absent here: {', '.join(sorted(whole[0])[:3])} is loaded instead"
    return WeightFiles(tuple(sorted(whole[0])), heads, note=note)


def may_be_weights(path: str) -> bool:
    """True if a file of this name may be among a model's weight files."""
    return path.endswith(SUFFIX) and "/" not in path and not path.startswith(_NEVER)


def _is_of_head(name: str) -> bool:
    return "mtp" in name and not _SHARD.fullmatch(name)


def _named_by(index: str) -> set[str] | None:
    """The files that an index names; None if it is not one, or names places outside the folder."""
    try:
        shard_of: Any = json.loads(index)["weight_map"]
        named = set(cast("dict[str, object]", shard_of).values())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    shards = {name for name in named if isinstance(name, str) and may_be_weights(name) and "\\" not in name}
    return shards if len(shards) == len(named) else None


def _sets(names: Collection[str]) -> list[set[str]]:
    """Shards of one prefix and number belong together; any other file is a set of its own."""
    sets: dict[tuple[str, ...], set[str]] = {}
    for name in names:
        match = _SHARD.fullmatch(name)
        sets.setdefault((match[1], match[3]) if match else (name,), set()).add(name)
    return list(sets.values())


def _gap(names: Collection[str]) -> str:
    """The first shard that is absent beside others of its set; empty if there is none."""
    for members in _sets(names):
        if match := _SHARD.fullmatch(min(members)):
            parts = (f"{number:0{len(match[2])}}" for number in range(1, int(match[3]) + 1))
            names_of_set = (f"{match[1]}-{part}-of-{match[3]}{SUFFIX}" for part in parts)
            if absent := next((name for name in names_of_set if name not in members), ""):
                return absent
    return ""
