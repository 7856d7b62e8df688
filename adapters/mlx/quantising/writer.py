"""The files of a quantised model, written so that a kill at any moment loses at most one shard's work.

    .NAME.quantising/quantise.json               the plan's digest and the order: what is there is of it, or is removed
    .NAME.quantising/model-0000i-of-n.part       the shard that is being written
    .NAME.quantising/model-0000i-of-n.safetensors  whole, synced, then renamed: never written again
    .NAME.quantising/ ... index, config.json     last
    NAME/                                        the folder renamed, once everything in it is synced

A shard has the names, the sizes and the limit of mlx-lm's `save_model`. Its header follows from names and shapes, so
that every tensor has its place before any is computed.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlx.core as mx

from adapters.mlx.quantising.beside import header_of
from adapters.mlx.quantising.conversion import Output, Step
from adapters.mlx.runtime.arrays import byte_view
from domain.errors import InvalidRequest

SHARD_BYTES = 5 * 2**30
"""mlx-lm's."""

JOURNAL = "quantise.json"

_NAMES = {
    mx.float32: "F32",
    mx.float16: "F16",
    mx.bfloat16: "BF16",
    mx.uint32: "U32",
    mx.uint8: "U8",
    mx.int8: "I8",
    mx.int32: "I32",
    mx.int64: "I64",
    mx.uint16: "U16",
    mx.int16: "I16",
    mx.uint64: "U64",
    mx.bool_: "BOOL",
}
"""The dtypes as safetensors writes them."""


def shards_of(outputs: Sequence[Output], most_bytes: int = SHARD_BYTES) -> list[list[Output]]:
    """As mlx-lm's `make_shards`: in order, a tensor larger than the limit alone."""
    shards: list[list[Output]] = []
    size = 0
    for output in outputs:
        if not shards or size + output.num_bytes > most_bytes:
            shards.append([])
            size = 0
        shards[-1].append(output)
        size += output.num_bytes
    return shards


def shard_name(index: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{index + 1:05d}-of-{count:05d}.safetensors"


@contextmanager
def open_work(work: Path, digest: str, order: Mapping[str, Any]) -> Generator[None]:
    """Holds the folder of a plan, new or to be continued; what another plan left there is removed. `order`: for a
    reader. Raises OSError, and InvalidRequest while another process holds it."""
    work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(work, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidRequest(f"{work} is in use: another process makes this copy", param="out") from None
        journal = work / JOURNAL
        if _plan_in(journal) != digest:
            for path in work.iterdir():
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            write_file(journal, json.dumps({"plan": digest, "order": order}, default=str).encode())
        yield
    finally:
        os.close(descriptor)


def _plan_in(journal: Path) -> object:
    try:
        return json.loads(journal.read_text())["plan"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_file(path: Path, content: bytes) -> None:
    """Writes a small file as a whole: synced, then renamed. Raises OSError."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class ShardWriter:
    """Writes the shards that are missing. `wrote`: called with the number of further bytes, and may raise to stop."""

    def __init__(self, work: Path, shards: Sequence[Sequence[Output]], wrote: Callable[[int], None]) -> None:
        self._work, self._wrote = work, wrote
        self._place: dict[str, tuple[int, int]] = {}
        self._headers: list[bytes] = []
        self._names = [shard_name(index, len(shards)) for index in range(len(shards))]
        self._missing: dict[int, set[str]] = {}
        self._files: dict[int, int] = {}
        for index, shard in enumerate(shards):
            entries, offset = dict[str, object](), 0
            for output in shard:
                offsets = [offset, offset + output.num_bytes]
                entries[output.name] = {"dtype": _NAMES[output.dtype], "shape": output.shape, "data_offsets": offsets}
                self._place[output.name] = index, offset
                offset += output.num_bytes
            self._headers.append(header_of(entries))
            if not (work / self._names[index]).is_file():
                self._missing[index] = {output.name for output in shard}
        for part in work.glob("*.part"):
            part.unlink()

    @property
    def weight_map(self) -> dict[str, str]:
        return {name: self._names[index] for name, (index, _) in sorted(self._place.items())}

    def write(self, step: Step) -> None:
        """Computes a step's outputs and writes those of missing shards. Raises OSError, and what computing raises."""
        missing = [output.name in self._missing.get(self._place[output.name][0], ()) for output in step.outputs]
        if not any(missing):
            self._wrote(sum(output.num_bytes for output in step.outputs))
            return
        offsets = [0] * len(step.outputs)
        for piece in step.pieces():
            for at, array in enumerate(piece):
                if missing[at]:
                    self._put(step.outputs[at].name, offsets[at], array)
                offsets[at] += array.nbytes
            self._wrote(sum(array.nbytes for array in piece))
        for output, is_missing in zip(step.outputs, missing, strict=True):
            if is_missing:
                self._done(output.name)

    def _put(self, name: str, offset: int, array: mx.array) -> None:
        index, begin = self._place[name]
        if index not in self._files:
            part = self._work / f"{self._names[index]}.part"
            self._files[index] = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            _write_at(self._files[index], self._headers[index], 0)
        if array.size:
            _write_at(self._files[index], byte_view(array), len(self._headers[index]) + begin + offset)

    def _done(self, name: str) -> None:
        index, _ = self._place[name]
        self._missing[index].discard(name)
        if self._missing[index]:
            return
        descriptor, final = self._files.pop(index), self._work / self._names[index]
        os.fsync(descriptor)
        os.close(descriptor)
        final.with_name(final.name + ".part").rename(final)
        sync_folder(self._work)
        del self._missing[index]

    def close(self) -> None:
        """Closes what is open; idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])


def _write_at(descriptor: int, data: bytes | memoryview, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view, offset = view[count:], offset + count


def index_of(weight_map: Mapping[str, str], num_bytes: int, num_parameters: int) -> bytes:
    """The index as mlx-lm writes it."""
    index: dict[str, Any] = {
        "metadata": {"total_size": num_bytes, "total_parameters": num_parameters},
        "weight_map": dict(weight_map),
    }
    return json.dumps(index, indent=4).encode()
