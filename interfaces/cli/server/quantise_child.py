"""The entry point of the process that quantises a model, which takes one call from its input."""

import os
from collections.abc import Sequence
from pathlib import Path

from adapters.quantise_process.process import serve
from application.ports.quantiser import Quantiser


def make(memory_dir: str) -> Quantiser:
    from interfaces.composition.backends import prepare_mlx

    prepare_mlx()
    from adapters.mlx.quantising.quantiser import MlxQuantiser
    from adapters.mlx.quantising.texts import TEXTS

    return MlxQuantiser(_tokens, TEXTS, Path(memory_dir) if memory_dir else None)


def _tokens(folder: Path, text: str) -> Sequence[int]:
    from adapters.tokenizers.library import load_tokenizer

    return load_tokenizer(str(folder)).encode(text, add_special_tokens=True)


if __name__ == "__main__":
    os._exit(serve(make))
