"""Power cuts, from the real writes and syncs of every file of a store; failing syncs; and what older versions tore."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from shutil import rmtree

import pytest

from application.ports.block_store import OpenFailure, StoreOpenError
from tests.support.processes.processes import fast_folder, finish, start
from tests.support.stores.io_log import Op, build_recorder, read_log, recording_environment
from tests.support.stores.lmdb_store import open_store
from tests.support.stores.power_cuts import cut_often


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cairn-power-", dir=fast_folder(tmp_path)))
    yield folder
    rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("life", "num_cuts"),
    [("roomy", 35), ("tight", 40)],
)
def test_a_power_cut_loses_what_it_may_and_nothing_else(folder: Path, life: str, num_cuts: int) -> None:
    outcomes = cut_often(life, folder, num_cuts, seed=1)
    assert outcomes.total() == num_cuts
    assert set(outcomes) == {"some groups"}


def test_the_first_start_makes_format_durable_before_the_database(folder: Path) -> None:
    library, root, log = build_recorder(folder), folder / "root", folder / "log"
    root.mkdir()
    program = (
        f"from tests.integration.store.test_store_power_cut import *\nopen_store(Path({str(root)!r}) / 'store').close()"
    )
    finish(start("-c", program, environment=recording_environment(library, root, log)), 60)
    names: dict[int, str] = {}
    steps: list[str] = []
    for record in read_log(log):
        if record.op in {Op.OPEN, Op.MKDIR}:
            names[record.inode] = Path(record.path).name
        if record.op is Op.SYNC:
            steps.append(f"sync {names.get(record.inode, 'parent')}")
        elif record.op is Op.RENAME or (record.op is Op.OPEN and record.is_created):
            steps.append(f"{record.op.name} {Path(record.other or record.path).name}".lower())
    format_steps = ["open format.new", "sync format.new", "rename format", "sync store"]
    database = steps.index("open data.mdb")
    assert steps[:1] == ["sync parent"]
    assert [step for step in steps[:database] if step in format_steps] == format_steps
    assert "sync store" in steps[database:]


@pytest.mark.parametrize("content", [b"x" * 9000, bytes(8192), b"short"])
def test_a_database_without_a_format_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    (path / "data.mdb").write_bytes(content)
    with pytest.raises(StoreOpenError) as refused:
        open_store(path)
    assert refused.value.failure is OpenFailure.FOREIGN
    assert [file.name for file in path.iterdir()] == ["writer.lock", "data.mdb"]
    assert (path / "data.mdb").read_bytes() == content
