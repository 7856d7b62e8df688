"""A copy that is killed at any moment is continued, and its files are those of one that was not."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.mlx.quantising import quantiser, rounding, writer
from adapters.mlx.quantising.conversion import open_conversion
from adapters.mlx.quantising.writer import ShardWriter, open_work, shards_of
from application.ports.quantiser import QuantPhase, QuantProgress, partial_name
from domain.errors import InvalidRequest
from domain.models.capability import PLAIN_USE
from domain.models.quantisation import Quantisation
from tests.support.effort import drawn
from tests.support.mlx.quantised_copies import copied
from tests.support.mlx.tiny_models import write_folder

SHARD_BYTES = 24_000


class Stop(Exception):
    pass


def contents(folder: Path) -> dict[str, bytes]:
    """A kill right behind the last renaming leaves the journal."""
    found = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != writer.JOURNAL]
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many shards, matrices that end in the middle of one, and pieces of a few rows."""
    monkeypatch.setattr(quantiser, "shards_of", lambda outputs: shards_of(outputs, SHARD_BYTES))
    monkeypatch.setattr(rounding, "PIECE_BYTES", 3_000)


def test_a_copy_stopped_at_every_step_is_that_of_one_run(tmp_path: Path) -> None:
    folder = write_folder("qwen3_moe", tmp_path / "source")
    copied(folder, tmp_path / "whole")
    num_stops = 0

    def stop_now_and_then(now: QuantProgress) -> None:
        nonlocal num_stops
        if now.phase is QuantPhase.WRITING and now.done < now.total and random.random() < 0.02:
            num_stops += 1
            raise Stop

    random.seed(5)
    while not (tmp_path / "copy").exists():
        try:
            copied(folder, tmp_path / "copy", report=stop_now_and_then)
        except Stop:
            assert not (tmp_path / "copy").exists()
            assert (tmp_path / partial_name("copy")).is_dir()
    assert num_stops > 3
    assert contents(tmp_path / "copy") == contents(tmp_path / "whole")


def test_whole_shards_are_not_written_again(tmp_path: Path) -> None:
    folder, work = write_folder("llama", tmp_path / "source"), tmp_path / "work"

    def write(until: int | None) -> None:
        made = open_conversion(folder, PLAIN_USE, Quantisation())
        with open_work(work, "a plan", {}):
            files = ShardWriter(work, shards_of(made.outputs, SHARD_BYTES), lambda _: None)
            for step in made.steps[:until]:
                files.write(step)
            files.close()

    write(8)
    first = {path.name: path.stat().st_ino for path in work.glob("*.safetensors")}
    assert first
    assert list(work.glob("*.part"))
    write(None)
    after = {path.name: path.stat().st_ino for path in work.glob("*.safetensors")}
    assert len(after) > len(first)
    assert {name: after[name] for name in first} == first
    assert not list(work.glob("*.part"))


def test_what_another_plan_left_is_removed(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source")
    work = tmp_path / partial_name("copy")
    work.mkdir()
    (work / "model.safetensors").write_bytes(b"of another plan")
    (work / writer.JOURNAL).write_text('{"plan": "other"}')
    copied(folder, tmp_path / "copy")
    copied(folder, tmp_path / "whole")
    assert contents(tmp_path / "copy") == contents(tmp_path / "whole")


def test_a_copy_that_another_process_makes_is_left_alone(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source")
    with open_work(tmp_path / partial_name("copy"), "a plan", {}):
        kept = tmp_path / partial_name("copy") / "model.safetensors.part"
        kept.write_bytes(b"being written")
        with pytest.raises(InvalidRequest, match="another process"):
            copied(folder, tmp_path / "copy")
        assert kept.read_bytes() == b"being written"
    copied(folder, tmp_path / "copy")


KILLED = """
import sys
from pathlib import Path
from adapters.mlx.quantising import quantiser, writer
from tests.support.mlx.quantised_copies import copied
shards = writer.shards_of
quantiser.shards_of = lambda outputs: shards(outputs, {size})
print("begun", flush=True)
copied(Path(sys.argv[1]), Path(sys.argv[2]), report=lambda _: print(".", end="", flush=True))
"""


def test_a_process_killed_at_a_random_moment_is_continued(tmp_path: Path) -> None:
    folder = write_folder("llama", tmp_path / "source")
    copied(folder, tmp_path / "whole")
    random.seed(3)
    for number in range(drawn(10)):
        out = tmp_path / f"copy{number}"
        marks = random.randrange(1, 40)
        with subprocess.Popen(
            [sys.executable, "-c", KILLED.format(size=SHARD_BYTES), str(folder), str(out)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.stdout.read(marks)  # so many steps, or all of them
            os.kill(process.pid, signal.SIGKILL)
        if not out.exists():
            copied(folder, out)
        assert contents(out) == contents(tmp_path / "whole")
