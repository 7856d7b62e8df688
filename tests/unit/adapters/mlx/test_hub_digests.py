"""Digests of files in the hub's cache: its own SHA-256 in place of a reading, unless the blob changed since."""

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from adapters.mlx.loading import weights_digest
from adapters.mlx.loading.weights_digest import digest_folder
from domain.models.load_progress import LoadPhase

WEIGHTS = b"weights" * 1000
SHA = hashlib.sha256(WEIGHTS).hexdigest()


def in_the_hub_s_cache(cache: Path, *, blob: str = SHA, content: bytes = WEIGHTS, link: str = "") -> Path:
    """A snapshot with one file of weights, as the hub's library leaves it. `link`: where the file leads to."""
    entry = cache / "models--org--name"
    snapshot, blobs = entry / "snapshots" / "abc", entry / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir(exist_ok=True)
    (blobs / blob).write_bytes(content)
    (snapshot / "model.safetensors").symlink_to(link or f"../../blobs/{blob}")
    return snapshot


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read, but for what is remembered."""
    names: list[str] = []
    plain = Path.open

    def spy(self: Path, *arguments: Any, **named: Any) -> object:
        if arguments == ("rb",) and self.suffix != ".json":
            names.append(self.name)
        return plain(self, *arguments, **named)

    monkeypatch.setattr(Path, "open", spy)
    return names


def written_through(path: Path, content: bytes) -> None:
    """Writes into the blob itself, until the clock of the file system has moved on."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == before:
        path.write_bytes(content)


def test_weights_in_the_hub_s_cache_are_not_read(tmp_path: Path, read: list[str]) -> None:
    one, other = in_the_hub_s_cache(tmp_path / "a"), in_the_hub_s_cache(tmp_path / "b", blob="0" * 64)
    assert digest_folder(one, tmp_path / "memory") != digest_folder(other, tmp_path / "memory"), "named by their blobs"
    assert len(read) == 0


def test_a_blob_that_is_a_link_to_a_shared_one_is_not_read_either(tmp_path: Path, read: list[str]) -> None:
    (tmp_path / "shared").write_bytes(WEIGHTS)
    snapshot = in_the_hub_s_cache(tmp_path / "a")
    blob = tmp_path / "a" / "models--org--name" / "blobs" / SHA
    blob.unlink()
    blob.symlink_to(tmp_path / "shared")
    assert digest_folder(snapshot, None) == digest_folder(in_the_hub_s_cache(tmp_path / "b"), None)
    assert len(read) == 0


def test_a_blob_that_was_written_through_its_link_is_read(tmp_path: Path, read: list[str]) -> None:
    snapshot, memory = in_the_hub_s_cache(tmp_path), tmp_path / "memory"
    intact = digest_folder(snapshot, memory)
    written_through(snapshot / "model.safetensors", WEIGHTS)
    assert digest_folder(snapshot, memory) == intact, "the content is what its name says"
    assert digest_folder(snapshot, memory) == intact
    assert len(read) == 1, "remembered once it was read"
    written_through(snapshot / "model.safetensors", WEIGHTS[::-1])
    assert digest_folder(snapshot, memory) != intact


@pytest.mark.parametrize(
    "layout", ["plain file", "git's id", "no snapshot", "another model's blob", "a blob of no model", "not hexadecimal"]
)
def test_any_other_file_is_read(tmp_path: Path, read: list[str], layout: str) -> None:
    if layout == "plain file":
        folder = tmp_path / "folder"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(WEIGHTS)
    elif layout == "git's id":
        folder = in_the_hub_s_cache(tmp_path, blob="a" * 40)
    elif layout == "no snapshot":
        folder = in_the_hub_s_cache(tmp_path).parent.parent / "elsewhere" / "abc"
        folder.mkdir(parents=True)
        (folder / "model.safetensors").symlink_to(f"../../blobs/{SHA}")
    elif layout == "another model's blob":
        blobs = tmp_path / "models--org--other" / "blobs"
        blobs.mkdir(parents=True)
        (blobs / SHA).write_bytes(WEIGHTS)
        folder = in_the_hub_s_cache(tmp_path, link=f"../../../models--org--other/blobs/{SHA}")
    elif layout == "a blob of no model":
        folder = tmp_path / "snapshots" / "abc"
        folder.mkdir(parents=True)
        (tmp_path / "blobs").mkdir()
        (tmp_path / "blobs" / SHA).write_bytes(WEIGHTS)
        (folder / "model.safetensors").symlink_to(f"../../blobs/{SHA}")
    else:
        folder = in_the_hub_s_cache(tmp_path, blob="G" * 64)
    digest_folder(folder, None)
    assert len(read) == 1


def test_a_remembered_digest_wins(tmp_path: Path, read: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier release remembered of a blob names the state that is stored of it."""
    snapshot, memory = in_the_hub_s_cache(tmp_path), tmp_path / "memory"
    named = digest_folder(snapshot, None)
    with monkeypatch.context() as before:
        before.setattr(weights_digest, "_name_of_blob", lambda _path: None)
        remembered = digest_folder(snapshot, memory)
    assert digest_folder(snapshot, memory) == remembered != named
    assert len(read) == 1


def test_bytes_that_were_read_are_reported(tmp_path: Path) -> None:
    told: list[tuple[LoadPhase, int, int]] = []
    (tmp_path / "model-1.safetensors").write_bytes(WEIGHTS)
    (tmp_path / "model-2.safetensors").write_bytes(b"more")
    digest_folder(tmp_path, tmp_path / "memory", lambda *report: told.append(report))
    whole = len(WEIGHTS) + 4
    assert told[0] == (LoadPhase.HASHING, 0, whole)
    assert told[-1] == (LoadPhase.HASHING, whole, whole)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)
    told.clear()
    os.utime(tmp_path / "model-2.safetensors", ns=(1, 1))
    digest_folder(tmp_path, tmp_path / "memory", lambda *report: told.append(report))
    assert told == [(LoadPhase.HASHING, 0, 4), (LoadPhase.HASHING, 4, 4)], "what is remembered is not counted"
