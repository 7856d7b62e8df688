"""Everything of a model that is not quantised, copied byte for byte: tensors beside its network, and its other files.

    mtp.safetensors      heads for several tokens, which mlx-lm drops
    tower.safetensors    towers of images and sound, which mlx-lm drops; the index names it
    other files          tokenizer, templates, processors, licence, card, settings of sentence-transformers

mlx-lm reads `model*.safetensors` only, so that it loads the copy as it loads the result of its own converter.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from adapters.mlx.loading.drafters import CONVOLUTION, any_head
from adapters.mlx.loading.files import read_tensors, weights_of
from domain.models.weight_files import INDEX

HEADS, TOWER = "mtp.safetensors", "tower.safetensors"

_TOWER = re.compile(r"(^|\.)(vision|visual|audio|image|mm_|multi_modal|vit|aligner|connector|embed_(vision|audio))")
_OTHER_WEIGHTS = re.compile(r"\.(safetensors|bin|pt|pth|ckpt|gguf|onnx|onnx_data|h5|msgpack|npz|tflite|mlmodel)$")
_OWN = frozenset({"config.json", INDEX, "hf_quant_config.json", "pytorch_model.bin.index.json"})
_MAX_FILE_BYTES = 256 * 2**20
_CHUNK_BYTES = 8 * 2**20
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """A tensor in a file. `begin`: of its bytes, from the file's start."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    num_bytes: int


def tensors_beside(folder: Path, num_layers: int | None, has_tower: bool) -> dict[str, dict[str, StoredBytes]]:
    """Returns by new file the tensors that go there. `has_tower`: the network holds the tower itself. Raises
    ModelLoadFailed."""
    files, head, found = weights_of(folder), any_head(num_layers), dict[str, dict[str, StoredBytes]]()
    convolution: tuple[str, StoredBytes] | None = None  # says in which form the head is
    for name in files.all:
        path = folder / name
        with path.open("rb") as file:
            start = _LENGTH_BYTES + int.from_bytes(file.read(_LENGTH_BYTES), "little")
        for tensor, stored in read_tensors(path).items():
            is_head = name in files.heads or head.match(tensor) is not None
            begin = start + stored.end - stored.num_bytes
            entry = StoredBytes(path, stored.dtype, stored.shape, begin, stored.num_bytes)
            if is_head or (not has_tower and _TOWER.search(tensor)):
                found.setdefault(HEADS if is_head else TOWER, {})[tensor] = entry
            elif tensor.endswith(CONVOLUTION) and convolution is None:
                convolution = tensor, entry
    if convolution is not None and HEADS in found:
        found[HEADS].setdefault(*convolution)
    return found


def copy_tensors(tensors: Mapping[str, StoredBytes], target: Path) -> None:
    """Writes a safetensors file with these tensors, unchanged, and syncs it. Raises OSError."""
    header, offset = dict[str, object](), 0
    for name, stored in tensors.items():
        offsets = [offset, offset + stored.num_bytes]
        header[name] = {"dtype": stored.dtype, "shape": stored.shape, "data_offsets": offsets}
        offset += stored.num_bytes
    with target.open("wb") as out:
        out.write(header_of(header))
        for stored in tensors.values():
            with stored.path.open("rb") as source:
                source.seek(stored.begin)
                left = stored.num_bytes
                while left:
                    chunk = source.read(min(left, _CHUNK_BYTES))
                    if not chunk:
                        raise OSError(f"{stored.path} ended while it was read")
                    left -= out.write(chunk)
        out.flush()
        os.fsync(out.fileno())


def header_of(entries: Mapping[str, object]) -> bytes:
    """The beginning of a safetensors file: the header's length, and the header, padded to 8 bytes."""
    text = json.dumps({"__metadata__": {"format": "mlx"}, **entries}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def other_files(folder: Path) -> list[Path]:
    """The files to copy, relative to the folder: those in it, and small ones of its subfolders with modules of
    sentence-transformers."""
    own = [path for path in folder.glob("[!.]*") if path.name not in _OWN]
    found = [path for path in (*own, *folder.glob("[0-9]_*/[!.]*")) if path.is_file()]
    wanted = [path for path in found if not _OTHER_WEIGHTS.search(path.name.lower())]
    return sorted(path.relative_to(folder) for path in wanted if path.stat().st_size <= _MAX_FILE_BYTES)


def copy_files(folder: Path, target: Path) -> None:
    """Copies `other_files`, what links refer to included. Raises OSError."""
    for path in other_files(folder):
        (target / path).parent.mkdir(exist_ok=True)
        shutil.copyfile(folder / path, target / path)
