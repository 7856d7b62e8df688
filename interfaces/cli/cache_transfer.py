"""`cairn cache export`, `import` and `new-key`: carrying records from one store to another."""

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from interfaces.cli.cache_store import OfModel, StoreDir, opened, tell
from interfaces.cli.failure import USAGE, fail
from interfaces.cli.options import AsJson
from interfaces.cli.progress import Unit, progress

if TYPE_CHECKING:
    from adapters.export.seal import ExportKey
    from application.use_cases.export_store import TransferReport

_MAX_KEY_FILE_BYTES = 1024

File = Annotated[Path, typer.Argument(metavar="FILE")]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", metavar="KEYFILE", help="The key of the export, made by new-key.")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Import it whoever made it: what it holds decides how models answer. Not needed with its key."
    ),
]


def export_records(
    file: File, store: StoreDir = None, model: OfModel = None, key_file: KeyFile = None, as_json: AsJson = False
) -> None:
    """Write records to a file (mode 0600; prompts are in it as token ids) that `import` reads, here or elsewhere."""
    from adapters.export.format import ExportWriter
    from adapters.system.private_file import private_file
    from adapters.zstd.codec import ZstdStateCodec
    from application.use_cases.export_store import export_store
    from application.use_cases.walk_store import chosen
    from domain.namespace_choice import NamespaceChoice

    key = _key(key_file)
    with opened(store, read_only=True) as source:
        choice = NamespaceChoice(model)
        total_bytes = sum(space.raw_bytes for space in chosen(source, choice))
        try:
            with private_file(file) as stream, progress("exporting", total_bytes, Unit.BYTES, quiet=as_json) as bar:
                writer = ExportWriter(stream, ZstdStateCodec(), ZstdStateCodec(compress=False), key)
                report = export_store(source, writer, choice, bar.advance)
        except OSError as failure:
            fail(f"{file} cannot be written: {failure.strerror}")
    _tell(report, as_json)


def import_records(
    file: File, store: StoreDir = None, key_file: KeyFile = None, trust: Trust = False, as_json: AsJson = False
) -> None:
    """Add the records of an exported file; what is present stays. It must be signed with the key, or be trusted."""
    from adapters.export.format import ExportReader
    from adapters.zstd.codec import ZstdStateCodec
    from application.ports.record_transfer import InvalidExport
    from application.use_cases.export_store import import_store

    key = _key(key_file)
    try:
        with (
            file.open("rb") as stream,
            opened(store, read_only=False) as target,
            progress("importing", file.stat().st_size, Unit.BYTES, quiet=as_json) as bar,
        ):
            counted = _Counted(stream, bar.advance)
            report = import_store(target, ExportReader(counted, ZstdStateCodec(), key, trusts_anyone=trust))
    except OSError as failure:
        fail(f"{file} cannot be read: {failure.strerror}")
    except InvalidExport as failure:
        fail(f"{file}: {failure}")
    _tell(report, as_json)


class _Counted:
    """A stream that tells how many bytes were read of it."""

    def __init__(self, stream: BinaryIO, advance: Callable[[int], None]) -> None:
        self._stream = stream
        self._advance = advance

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._advance(len(data))
        return data


def new_key(file: File) -> None:
    """Make a key (a file of mode 0600) that exports are signed with; whoever has it can sign, so carry it safely."""
    from adapters.export.seal import KEY_BYTES
    from adapters.system.private_file import create_secret

    try:
        create_secret(file, secrets.token_hex(KEY_BYTES).encode() + b"\n")
    except FileExistsError:
        fail(f"{file} exists; a key is never written over")
    except OSError as failure:
        fail(f"{file} cannot be written: {failure.strerror}")


def _key(file: Path | None) -> "ExportKey | None":
    from adapters.export.seal import ExportKey
    from adapters.system.private_file import read_secret

    if file is None:
        return None
    try:
        content = read_secret(file, _MAX_KEY_FILE_BYTES)
    except OSError as failure:
        fail(f"the key {file} cannot be read: {failure.strerror}")
    except ValueError as failure:
        fail(f"the key {file} {failure}", USAGE)
    try:
        return ExportKey(bytes.fromhex(content.decode("ascii").strip()))
    except ValueError:
        fail(f"{file} is no key: make one with cairn cache new-key", USAGE)


def _tell(report: "TransferReport", as_json: bool) -> None:
    skipped = dict(report.skipped)
    tell({"namespaces": report.num_namespaces, "records": report.num_records, "skipped": skipped}, as_json)


__all__ = ("export_records", "import_records", "new_key")
