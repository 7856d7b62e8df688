"""Command-line options that several commands share, and their way into the settings."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domain.printable import printable
from interfaces.cli.terminal.ending import USAGE, fail

if TYPE_CHECKING:
    from adapters.config.loader import LoadedSettings

FAKE_MODEL = "fake-attention"

_COUNT = re.compile(r"([0-9]{1,9})([kKmM]?)")
_TIMES = {"": 1, "k": 2**10, "m": 2**20}

Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="A model's name, a local folder, or a hub id. Default: the embedded model."),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", metavar="TYPE", help="auto, float32, bfloat16 or float16. auto: float32 on a Linux CPU."),
]
ModelDirs = Annotated[
    list[str] | None,
    typer.Option("--model-dir", metavar="DIR", help="A folder of models, as NAME/ or ORG/NAME/. May be repeated."),
]
Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="mlx, or fake: a toy engine for tests.", hidden=True)
]


def key_in(file: str | None) -> str | None:
    """The key in a file; ends the command if the file is empty or cannot be read."""
    if file is None:
        return None
    try:
        key = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        fail(f"--api-key-file: {file} cannot be read: {error}", USAGE)
    return key or fail(f"--api-key-file: {file} is empty", USAGE)


ApiKey = Annotated[
    str | None,
    typer.Option(
        "--api-key-file",
        metavar="FILE",
        callback=key_in,
        help="File with the server's key. Default: CAIRN_SERVER__API_KEY, or server.api_key of the settings.",
    ),
]
"""Returns the key. It is not an argument, because every user of a machine can see the arguments of its processes."""

Url = Annotated[
    str | None, typer.Option(metavar="URL", help="The server. Default: the address in the settings, on this machine.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]


KvBits = Annotated[
    str | None,
    typer.Option(
        "--kv-bits",
        metavar="BITS",
        help="Bits of kept keys and values: off, 8, 4, or 8/4 for keys and values apart. Default: off.",
    ),
]


def parse_tokens(text: str) -> int:
    """The number of tokens in `--context`: `32768`, `32k`, `1m`; ends the command if it is none."""
    match = _COUNT.fullmatch(text)
    count = int(match[1]) * _TIMES[match[2].lower()] if match else 0
    if not 0 < count < 2**31:
        fail(f"--context {printable(text)!r} is not a number of tokens: write 131072 or 128k", USAGE)
    return count


def settings_with(flags: Mapping[str, tuple[str, object]]) -> "LoadedSettings":
    """The settings from all sources; ends the command if they are invalid.

    `flags`: by settings path, the flag's name and its value; None for a flag that was not given.
    """
    from adapters.config.loader import DEFAULT, Flag, InvalidSettings, load_settings

    given = {path: Flag(name, value) for path, (name, value) in flags.items() if value is not None}
    try:
        loaded = load_settings(os.environ, given)
        if loaded.settings.engine.backend == "fake" and loaded.origins["model.default"] == DEFAULT:
            loaded = load_settings(os.environ, given | {"model.default": Flag("--backend fake", FAKE_MODEL)})
    except InvalidSettings as error:
        fail(error.message, USAGE)
    return loaded


def model_flags(
    model: str | None, dtype: str | None, dirs: list[str] | None, backend: str | None
) -> dict[str, tuple[str, object]]:
    """The flags of `Model`, `Dtype`, `ModelDirs` and `Backend`, by settings path."""
    return {
        "model.default": ("MODEL", _folder_or_name(model)),
        "model.dtype": ("--dtype", dtype),
        "model.dirs": ("--model-dir", dirs or None),
        "engine.backend": ("--backend", backend),
    }


def _folder_or_name(model: str | None) -> str | None:
    """A folder named without a slash gets one, because ids without a slash are names."""
    if model and "/" not in model and os.path.isfile(os.path.join(model, "config.json")):
        return f"./{model}"
    return model
