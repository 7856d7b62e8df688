"""`cairn cache export`, `import` and `new-key` on real stores and files: who may read them, and whose are believed."""

import json
import os
import stat
from pathlib import Path

import pytest

from application.ports.record_writer import PutOutcome
from tests.support.cache_cli import isolate, make_store, open_store, run
from tests.support.export_files import ONE, content, entries_of, export_bytes, sealed
from tests.support.store_records import chain, keys_of, same


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    isolate(tmp_path, monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return make_store(tmp_path / "store", content())


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("field", ["block", "snapshot"])
def test_an_identifier_of_another_length_harms_no_store(tmp_path: Path, store: Path, field: str) -> None:
    """600 bytes once set the store aside, 31 bytes wiped it at the next put."""
    entries = entries_of(export_bytes())
    next(entry for entry in entries if field in entry.header).header[field] = "ab" * (600 if field == "block" else 31)
    (tmp_path / "file").write_bytes(sealed(entries))
    for _ in range(2):
        result = run("import", tmp_path / "file", "--trust", "--store", store)
        assert result.exit_code == 1
        assert f"{field} is not 32 bytes" in result.stderr
    opened = open_store(store)
    assert opened.put(chain(ONE, 2, seed=77)) is PutOutcome.STORED
    assert all(map(same, opened.get(keys_of(content())), content()))
    assert dict(opened.usage().faults) == {}
    opened.close()
    assert not (store / "data.damaged").exists()


def test_an_export_and_a_key_can_be_read_by_their_owner_only(tmp_path: Path, store: Path) -> None:
    before = os.umask(0)
    try:
        assert run("export", tmp_path / "file", "--store", store).exit_code == 0
        assert run("new-key", tmp_path / "key").exit_code == 0
        (tmp_path / "loose").write_bytes(b"old")
        assert run("export", tmp_path / "loose", "--store", store).exit_code == 0
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / name) for name in ("file", "key", "loose")] == [0o600] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "key", "loose", "store"]


def test_an_export_is_not_written_through_a_link(tmp_path: Path, store: Path) -> None:
    (tmp_path / "target").write_bytes(b"mine")
    (tmp_path / "file").symlink_to(tmp_path / "target")
    result = run("export", tmp_path / "file", "--store", store)
    assert result.exit_code == 1
    assert "not a file" in result.stderr
    assert (tmp_path / "target").read_bytes() == b"mine"


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    assert run("export", tmp_path / "file", "--store", tmp_path / "none").exit_code == 1
    assert list(tmp_path.iterdir()) == []


def test_a_key_signs_and_is_asked_for(tmp_path: Path, store: Path) -> None:
    for name in ("key", "other"):
        assert run("new-key", tmp_path / name).exit_code == 0
    assert "never written over" in run("new-key", tmp_path / "key").stderr
    assert run("export", tmp_path / "file", "--store", store, "--key-file", tmp_path / "key").exit_code == 0
    target = ("--store", tmp_path / "target")
    refused = run("import", tmp_path / "file", *target)
    assert (refused.exit_code, "--key-file" in refused.stderr) == (1, True)
    refused = run("import", tmp_path / "file", *target, "--key-file", tmp_path / "other")
    assert (refused.exit_code, "another key" in refused.stderr) == (1, True)
    done = run("import", tmp_path / "file", *target, "--key-file", tmp_path / "key", "--json")
    assert json.loads(done.stdout)["records"] == len(content())


def test_an_unsigned_export_needs_trust(tmp_path: Path, store: Path) -> None:
    assert run("export", tmp_path / "file", "--store", store).exit_code == 0
    refused = run("import", tmp_path / "file", "--store", tmp_path / "target")
    assert (refused.exit_code, "decides how models answer" in refused.stderr) == (1, True)
    assert run("import", tmp_path / "file", "--trust", "--store", tmp_path / "target").exit_code == 0


@pytest.mark.parametrize("how", ["loose", "short", "text", "missing", "folder"])
def test_a_key_that_is_none_is_refused(tmp_path: Path, store: Path, how: str) -> None:
    key = tmp_path / "key"
    if how == "folder":
        key.mkdir()
    elif how != "missing":
        key.touch(mode=0o600)
        key.write_text({"loose": "ab" * 32, "short": "ab" * 31}.get(how, "hello"))
        key.chmod(0o640 if how == "loose" else 0o600)
    result = run("export", tmp_path / "file", "--store", store, "--key-file", key)
    assert result.exit_code in (1, 2)
    assert str(key) in result.stderr
    assert not (tmp_path / "file").exists()
