"""Quantised copies of tiny folders, made in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
from tokenizers import Tokenizer

from adapters.mlx.quantising.quantiser import MlxQuantiser
from application.ports.quantiser import QuantOrder, QuantProgress, QuantReceipt
from domain.models.capability import PLAIN_USE, ModelUse
from domain.models.quantisation import Quantisation

TEXTS = (["the first of two short texts to measure on", "and 2 + 2 = 4"], ["a text to compare on", "another"])


def quantiser(memory_dir: Path | None = None) -> MlxQuantiser:
    return MlxQuantiser(_tokens, TEXTS, memory_dir)


def _tokens(folder: Path, text: str) -> Sequence[int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids


def copied(
    folder: Path,
    out: Path,
    form: Quantisation | None = None,
    *,
    recipe: str = "",
    use: ModelUse = PLAIN_USE,
    checks: bool = False,
    report: Callable[[QuantProgress], None] = lambda _: None,
    **order: Any,
) -> QuantReceipt:
    """Makes a copy of a folder."""
    wanted = QuantOrder(str(folder), str(out), use, form or Quantisation(), recipe, checks=checks, **order)
    return quantiser().run(wanted, report)


def tensors(folder: Path) -> dict[str, mx.array]:
    """Every tensor that mlx-lm would read."""
    found: dict[str, mx.array] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        found |= mx.load(str(file))  # type: ignore[arg-type]
    return found


def same_bytes(one: mx.array, other: mx.array) -> bool:
    """True if two arrays have one shape, one dtype and the same bits."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    words = (one.reshape(-1).view(mx.uint8), other.reshape(-1).view(mx.uint8))
    return bool(mx.array_equal(*words))
