"""`cairn cache` on a store of a test: the surroundings, the store on disk, the command."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from application.ports.block_store import PutOutcome
from domain.prefix.record import Record
from interfaces.cli.commands.cache import cache_app
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.two_models import ONE, TWO


def isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings and no cache of the machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("CAIRN_STORE__QUOTA", "64MiB")


def make_store(path: Path, records: Sequence[Record]) -> Path:
    """A store on disk that holds these records of ONE and TWO."""
    store = open_store(path, quota_bytes=64 << 20)
    store.open_namespace(ONE)
    store.open_namespace(TWO)
    assert store.put(records) is PutOutcome.STORED
    store.close()
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cache_app, [str(argument) for argument in arguments])
