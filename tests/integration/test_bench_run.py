"""`bench.gpu` ends in time whatever its cases do, and what they found until then is there."""

import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.bounded_process import run
from bench.case import Case, Figure, Goal
from bench.gpu import Run, chosen, table_of
from bench.gpu_cases import gpu_cases
from bench.gpu_table import MAX_CHARS
from bench.results import ROOT
from tests.support.patience import PATIENCE_S

GOOD = """
import json, sys
with open(sys.argv[1], "a") as file:
    for value in (3.0, 2.0):
        file.write(json.dumps({"what": "step", "side": "ours", "ms": value}) + "\\n")
print("went well")
"""
FAILS = """
import sys
open(sys.argv[1], "a").write('{"what": "step", "side": "ours", "ms": 7}\\n{"what": "cut o')
raise SystemExit("no such device")
"""
HANGS = """
import fcntl, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
held = open(sys.argv[2], "w")
fcntl.flock(held, fcntl.LOCK_EX)
open(sys.argv[1], "a").write('{"what": "step", "side": "ours", "ms": 9}\\n')
signal.alarm(600)
os.fork()
signal.pause()
"""
PRINTS = "while True: print('x' * 1000)"

FIGURE = Figure("step", "ms", {"side": "ours"})


def scripted(name: str, code: str, *arguments: str, limit_s: float = PATIENCE_S, needs: tuple[str, ...] = ()) -> Case:
    goals = (
        Goal("a step, ms", FIGURE, "no ratio", at_most=2.5),
        Goal("... beside", FIGURE, "over the good one", beside=Figure("step", "ms", case="good")),
    )
    return Case(name, ("-c", code, "{json}", *arguments), limit_s, goals=goals, needs=needs)


def test_what_fails_hangs_or_prints_without_end_is_ended_and_told(tmp_path: Path) -> None:
    lock, out = tmp_path / "lock", tmp_path / "out"
    cases = [
        scripted("good", GOOD),
        scripted("fails", FAILS),
        scripted("hangs", HANGS, str(lock), limit_s=1.0),
        scripted("prints", PRINTS),
        scripted("needs", GOOD, needs=("fails",)),
        scripted("last", GOOD),
    ]
    ran = Run(cases, out, tmp_path / "work", PATIENCE_S * 4, grace_s=0.5)
    ran.run()

    told = (out / "table.txt").read_text()
    assert told.rstrip("\n") == ran.table
    assert not ran.all_done
    rows = [line for line in told.splitlines() if line and not line.startswith(" ")][1:]
    outcomes = [row.partition(": ")[2].rpartition(", ")[0] for row in rows]
    assert [outcomes[0], outcomes[1], outcomes[2], outcomes[3], rows[4], outcomes[5]] == [
        *("done", "failed", "over time", "printing", "needs: left out: needs fails", "done")
    ]
    assert "no such device" in told
    assert "3.5 " in told  # what failed had measured 7 before, and the good one 2

    with lock.open("w") as held:  # nobody of the group holds it any more
        fcntl.flock(held, fcntl.LOCK_EX)
    lines = [line for line in (out / "results.jsonl").read_text().splitlines() if "cut o" not in line]
    ends = [one for one in map(json.loads, lines) if one["what"] == "case ended"]
    assert [one["case"] for one in ends] == ["good", "fails", "hangs", "prints", "last"]
    assert (out / "log.txt").stat().st_size < 1 << 20
    assert not any((tmp_path / "work").iterdir())
    assert {file.name for file in out.iterdir()} == {"table.txt", "results.jsonl", "log.txt"}


LEAVES = """
import subprocess, sys
child = [
    "import fcntl, sys, signal",
    "signal.alarm(600)",
    "fcntl.flock(held := open(sys.argv[1], 'w'), fcntl.LOCK_EX)",
    "print('held')",
    "signal.pause()",
]
command = [sys.executable, "-u", "-c", chr(10).join(child), sys.argv[1]]
subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True).stdout.readline()
"""
ADOPTS = """
import os, sys
from pathlib import Path
from bench.bounded_process import run
from bench.process_tree import adopt_orphans
lock, log, leaves = sys.argv[1:]
kills = adopt_orphans()
run([sys.executable, "-c", leaves, lock], dict(os.environ), 120, Path(log), Path("."), kills_children=kills)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans come to Linux's subreapers only")
def test_what_left_its_group_is_killed_as_an_orphan(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = ["-c", ADOPTS, str(lock), str(tmp_path / "log"), LEAVES]
    subprocess.run([sys.executable, *code], check=True, timeout=PATIENCE_S, cwd=ROOT)
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)


def test_a_case_that_the_time_does_not_allow_is_left_out(tmp_path: Path) -> None:
    ran = Run([scripted("good", GOOD)], tmp_path / "out", tmp_path / "work", seconds=0)
    ran.run()
    assert "good: left out: no time" in ran.table
    assert not (tmp_path / "out" / "results.jsonl").exists()


def test_the_table_can_be_made_again_of_what_killed_runs_left(tmp_path: Path) -> None:
    run = '{"what": "run", "device": "a card", "commit": "c0ffee", "sources": "5eed"}'
    step = '{"what": "step", "side": "ours", "ms": 4}'
    end = '{"what": "case ended", "case": "good", "outcome": "done", "taken_s": 5.0, "tail": []}'
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_text("\n".join(['{"what": "case begun", "case": "good"}', run, step, end, ""]))
    second.write_text("\n".join(['{"what": "case begun", "case": "killed"}', run, step, '{"what": "st']))
    cases = [scripted("good", GOOD), scripted("killed", GOOD), scripted("another", GOOD)]
    told = table_of([first, second, tmp_path / "none"], cases).splitlines()
    assert told[0] == "a card; commit c0ffee, sources 5eed"
    assert [line for line in told[1:] if not line.startswith(" ")] == ["good: done, 5 s", "killed: did not end"]
    assert told[-2].split()[:3] == ["NOT", "MET", "4"]
    assert told[-1].split()[:2] == ["told", "1"]  # over the other run's


def test_the_table_is_bounded(tmp_path: Path) -> None:
    cases = [scripted(f"case {number}" + "x" * 200, GOOD) for number in range(200)]
    assert len(Run(cases, tmp_path / "out", tmp_path / "work", 0).table) <= MAX_CHARS


def test_a_process_is_given_its_environment_and_its_last_lines_are_kept(tmp_path: Path) -> None:
    code = "import os; print(os.environ['WORD']); [print(number) for number in range(100)]"
    ended = run([sys.executable, "-c", code], {"WORD": "given"}, PATIENCE_S, tmp_path / "log", tmp_path)
    assert (ended.outcome, ended.status, ended.tail[-1]) == ("done", 0, "99")
    assert (tmp_path / "log").read_text().startswith("given\n")


@pytest.mark.parametrize("is_tiny", [True, False])
def test_cases_that_are_chosen_come_with_what_they_need(is_tiny: bool) -> None:
    cases = gpu_cases(is_tiny=is_tiny)
    assert [case.name for case in chosen(cases, "streams")] == ["device", "model", "streams"]
    assert chosen(cases, "") == list(cases)
    with pytest.raises(SystemExit, match="no case is called nothing"):
        chosen(cases, "nothing")


def test_every_figure_belongs_to_a_case_that_comes_first() -> None:
    names: set[str] = set()
    for case in gpu_cases(is_tiny=False):
        names.add(case.name)
        figures = [figure for goal in case.goals for figure in (goal.figure, goal.beside) if figure is not None]
        assert {figure.case or case.name for figure in figures} <= names
        assert case.worth_s <= case.limit_s
        assert set(case.needs) <= names


@pytest.mark.parametrize(
    ("value", "verdict"), [(None, "-"), (0.9, "NOT MET"), (1.0, "met"), (1.25, "met"), (1.3, "NOT MET")]
)
def test_a_goal_is_met_within_its_bounds(value: float | None, verdict: str) -> None:
    assert Goal("estimate", FIGURE, "", at_least=1.0, at_most=1.25).verdict(value) == verdict
    assert Goal("estimate", FIGURE, "").verdict(value) == ("-" if value is None else "told")
