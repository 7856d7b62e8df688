"""`cairn cache clear`: through the running server when there is one, because it has prompts in memory as well; else on
the store itself."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from domain.shown import shown
from interfaces.cli.commands.cache_requests import Url
from interfaces.cli.commands.cache_store import (
    FaultPrinter,
    OfModel,
    StoreDir,
    chosen,
    num_records,
    open_store,
    tell,
    working,
)
from interfaces.cli.terminal.failure import FAILED, fail
from interfaces.cli.terminal.options import ApiKey, AsJson, settings_with

if TYPE_CHECKING:
    from adapters.lmdb.block_store import LmdbBlockStore
    from application.ports.document_store import DocumentStore
    from application.settings import StoreSettings
    from domain.prefix.namespace_choice import NamespaceChoice

Salt = Annotated[
    str | None,
    typer.Option("--salt", metavar="SALT", help="Only what requests with this cache_salt left; '' for those without."),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def clear(
    store: StoreDir = None,
    model: OfModel = None,
    salt: Salt = None,
    url: Url = None,
    api_key: ApiKey = None,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Remove everything, or everything of a model or a tenant, for good, stored responses too: from a running server's
    memory, the store, and the files of the store. Status 1 when something may be left in those."""
    from domain.prefix.namespace_choice import NamespaceChoice

    choice = NamespaceChoice.of(model, salt, settings_with({}).settings.cache.salt)
    opened = None if url is not None else _own(store, is_everything=model is None and salt is None)
    if isinstance(opened, str):
        removed = _unopened(opened, store, yes)
    elif opened is None:
        _confirm(_read_count(choice) if url is None else None, yes)
        removed = _by_server(url, api_key, model, salt)
    else:
        try:
            removed = _by_itself(opened, store, choice, yes, as_json)
        finally:
            opened.close()
    tell(removed, as_json)
    if removed["problem"]:
        raise typer.Exit(FAILED)


def _own(directory: str | None, *, is_everything: bool) -> "LmdbBlockStore | str | None":
    """The store, opened for writing; None when a server has it and that server can be asked; or why its volume keeps it
    from being opened, where everything is to go, which needs no opening."""
    from application.ports.block_store import OpenFailure, StoreOpenError

    try:
        return open_store(directory, read_only=False)
    except StoreOpenError as failure:
        if failure.failure is OpenFailure.BUSY and directory is None:
            return None
        if failure.failure is OpenFailure.VOLUME and is_everything and _store_settings(directory)[1].is_dir():
            return str(failure)
        hint = "; name its server with --url" if failure.failure is OpenFailure.BUSY else ""
        fail(f"{failure}{hint}")


def _by_itself(
    opened: "LmdbBlockStore", directory: str | None, choice: "NamespaceChoice", yes: bool, as_json: bool
) -> dict[str, object]:
    from application.use_cases.clear_store import clear_store

    documents = _documents(directory)
    try:
        num_documents = documents.usage().num_documents if documents is not None else 0
        _confirm(num_records(chosen(opened, choice)), yes, num_documents)
        with working("removing", as_json):
            report = clear_store(opened, choice)
            gone = documents.erase(choice) if documents is not None else None
    finally:
        if documents is not None:
            documents.close()
    problems = "; ".join(one.problem for one in (report, gone) if one is not None and one.problem)
    return {
        "removed": report.num_records,
        "removed_bytes": report.num_bytes,
        "removed_documents": gone.num_documents if gone is not None else 0,
        "problem": problems or None,
    }


def _unopened(problem: str, directory: str | None, yes: bool) -> dict[str, object]:
    from application.ports.block_store import StoreOpenError
    from domain.prefix.namespace_choice import EVERYTHING
    from interfaces.composition.store import empty_store

    typer.echo(f"cairn: {problem}", err=True)
    _confirm(None, yes)
    documents = _documents(directory)
    try:
        empty_store(_store_settings(directory)[0])
        gone = documents.erase(EVERYTHING) if documents is not None else None
    except StoreOpenError as failure:
        fail(str(failure))
    finally:
        if documents is not None:
            documents.close()
    num_documents, why = (gone.num_documents, gone.problem) if gone is not None else (0, "")
    return {"removed": None, "removed_bytes": None, "removed_documents": num_documents, "problem": why or None}


def _store_settings(directory: str | None) -> "tuple[StoreSettings, Path]":
    from interfaces.composition.store import store_dir

    settings = settings_with({"store.dir": ("--store", directory)}).settings.store
    return settings, store_dir(settings)


def _documents(directory: str | None) -> "DocumentStore | None":
    """Those beside the store; None where there never were any."""
    from adapters.system.clock import SystemClock
    from interfaces.composition.documents import documents_file, open_documents

    settings = settings_with({"store.dir": ("--store", directory)}).settings.store
    if not documents_file(settings).parent.exists():
        return None
    return open_documents(settings, FaultPrinter(), SystemClock())


def _by_server(url: str | None, api_key: str | None, model: str | None, salt: str | None) -> dict[str, object]:
    import asyncio

    from interfaces.cli.client.running_server import needed, running_server
    from interfaces.http.cache.bodies import ClearedBody

    server = running_server(url, api_key, settings_with({}).settings.server)
    with needed():
        answer = asyncio.run(server.ask("/v1/cache/clear", json.dumps({"model": model, "salt": salt}).encode()))
        told = server.understood(answer, ClearedBody)
    return {
        "removed": told.records,
        "removed_bytes": told.bytes,
        "removed_documents": told.documents,
        "removed_from_memory": told.hot_records,
        "problem": None if told.problem is None else shown(told.problem),
    }


def _read_count(choice: "NamespaceChoice") -> int | None:
    from application.ports.block_store import StoreOpenError

    try:
        opened = open_store(None, read_only=True)
    except StoreOpenError:
        return None
    try:
        return num_records(chosen(opened, choice))
    finally:
        opened.close()


def _confirm(total: int | None, yes: bool, num_documents: int = 0) -> None:
    """`total` None: not known. `num_documents`: that there are, whoever's."""
    if (total != 0 or num_documents) and not yes:
        what = "what is kept of them" if total is None else f"{total} records"
        what += f" and those chosen of {num_documents} documents (stored responses and more)" if num_documents else ""
        typer.confirm(f"Remove {what}?", abort=True, err=True)
