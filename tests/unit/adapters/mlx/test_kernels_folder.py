"""Compiled kernels are loaded from a folder that nobody else can write to, whatever TMPDIR says."""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from interfaces.composition.backends import _keep_kernels_private


@pytest.fixture(autouse=True)
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A TMPDIR that everybody may write to, a cache folder of this test, and a umask that hides nothing."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    before = os.umask(0)
    yield folder
    os.umask(before)


def mode_of(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


def test_a_shared_folder_is_not_used(shared: Path, tmp_path: Path) -> None:
    _keep_kernels_private()
    folder = Path(os.environ["TMPDIR"])
    assert folder == tmp_path / "cache" / "cairn" / "kernels"
    assert mode_of(folder) == mode_of(folder.parent) == 0o700
    assert tempfile.gettempdir() == str(shared)


def test_a_folder_that_was_open_to_others_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "cairn" / "kernels"
    folder.mkdir(parents=True)
    assert mode_of(folder) == 0o777
    _keep_kernels_private()
    assert mode_of(folder) == 0o700


def test_a_private_folder_is_left_as_it_is(shared: Path) -> None:
    shared.chmod(0o700)
    _keep_kernels_private()
    assert os.environ["TMPDIR"] == str(shared)


@pytest.mark.parametrize("what", ["a file", "another user's"])
def test_without_a_cache_folder_a_new_one_is_made_once(shared: Path, tmp_path: Path, what: str) -> None:
    kernels = tmp_path / "cache" / "cairn" / "kernels"
    kernels.parent.mkdir(parents=True)
    if what == "a file":
        kernels.write_text("")
    elif os.geteuid():
        pytest.skip("only root can give a folder away")
    else:
        kernels.mkdir()
        os.chown(kernels, 12345, 12345)
    _keep_kernels_private()
    folder = Path(os.environ["TMPDIR"])
    assert folder.parent == shared
    assert mode_of(folder) == 0o700
    _keep_kernels_private()
    assert os.environ["TMPDIR"] == str(folder)
