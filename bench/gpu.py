"""Everything that only an accelerator can tell, in one command that ends in time whatever its parts do.

    python -m bench.gpu --out DIR [--seconds 560] [--only memory_peak,next_turn] [--work DIR] [--tiny]
    python -m bench.gpu --table RESULTS.jsonl ...

Cases (`bench.gpu_cases`) run one after the other, most worth first, each a process under a limit of its own: what hangs
or prints without end is ended with all it started, and the next one runs. Into DIR, as it comes:

    results.jsonl   what each found, a line a figure (`bench.results`), between lines that say when it began and ended
    log.txt         what each printed, up to a bound
    table.txt       goal, measured, baseline and verdict, written anew after each case

The table is printed at the end as well, also when this process is asked to end; `--table` makes it from the results of
any number of runs, and of one that was killed. `--work`: for models, stores and scratch; what a case leaves in its
temporary folder is deleted after it, models stay there if the folder was given.
`--tiny`: every case at the smallest size, on whatever computes here, to see that all of them run.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.bounded_process import GRACE_S, run
from bench.case import Case
from bench.gpu_cases import gpu_cases
from bench.gpu_table import Told, table
from bench.process_tree import adopt_orphans
from bench.results import ROOT, commit, device_name, sources_digest

RESERVE_S = 2 * GRACE_S + 5
"""What ending a case, deleting its files and writing the table may take: kept of the whole."""


class Run:
    """The cases of one run, in order."""

    def __init__(
        self,
        cases: Sequence[Case],
        out: Path,
        work: Path,
        seconds: float,
        grace_s: float = GRACE_S,
        *,
        kills_children: bool = False,
    ) -> None:
        self._kills_children = kills_children
        self._cases, self._out, self._work, self._grace_s = cases, out, work, grace_s
        self._ends_s = time.monotonic() + seconds
        self._results, self._log = out / "results.jsonl", out / "log.txt"
        self._told: dict[str, Told] = {}
        self._head = f"{device_name()}; commit {commit()}, sources {sources_digest()}; {time.strftime('%F %T %Z')}"
        out.mkdir(parents=True, exist_ok=True)
        work.mkdir(parents=True, exist_ok=True)

    @property
    def table(self) -> str:
        told, lines_of = recorded([self._results])
        return table(self._head, self._cases, told | self._told, lines_of)

    @property
    def all_done(self) -> bool:
        return all(case.name in self._told and self._told[case.name].outcome == "done" for case in self._cases)

    def run(self) -> None:
        self._write_table()
        try:
            for case in self._cases:
                self._told[case.name] = told = self._case(case)
                self._write_table()
                print(f"{case.name}: {told.outcome}, {told.taken_s:.0f} s", flush=True)
        finally:
            self._write_table()

    def _case(self, case: Case) -> Told:
        missing = [name for name in case.needs if name in self._told and self._told[name].outcome != "done"]
        if missing:
            return Told(f"left out: needs {', '.join(missing)}")
        limit_s = min(case.limit_s, self._ends_s - time.monotonic() - RESERVE_S)
        if limit_s < max(case.worth_s, 1.0):
            return Told("left out: no time")
        scratch = Path(tempfile.mkdtemp(prefix=f"{case.name}-", dir=self._work))
        command = [sys.executable, *case.command(limit_s, str(self._results), str(self._work))]
        self._note("case begun", case=case.name, limit_s=limit_s, command=command[1:])
        with self._log.open("a", encoding="utf-8") as log:
            log.write(f"\n== {case.name}: {' '.join(command[1:])}\n")
        environment = {**os.environ, "TMPDIR": str(scratch), "PYTHONUNBUFFERED": "1"}
        try:
            ended = run(
                command, environment, limit_s, self._log, ROOT, self._grace_s, kills_children=self._kills_children
            )
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        free_gb = shutil.disk_usage(self._work).free / 1e9
        facts = {"outcome": ended.outcome, "status": ended.status, "taken_s": ended.taken_s, "free_disk_GB": free_gb}
        self._note("case ended", case=case.name, **facts, tail=ended.tail)
        return Told(ended.outcome, ended.taken_s, ended.tail)

    def _note(self, what: str, **facts: Any) -> None:
        """A line of its own, also where a case was ended in the middle of one."""
        is_open = self._results.exists() and self._results.read_bytes()[-1:] not in (b"", b"\n")
        with self._results.open("a", encoding="utf-8") as file:
            file.write("\n" * is_open + json.dumps({"what": what, **facts}) + "\n")

    def _write_table(self) -> None:
        """Whole at any moment."""
        partial = self._out / "table.txt.partial"
        partial.write_text(self.table + "\n", encoding="utf-8")
        partial.replace(self._out / "table.txt")


def recorded(files: Sequence[Path]) -> tuple[dict[str, Told], dict[str, list[dict[str, Any]]]]:
    """How each case went and what it told, the last time that it ran."""
    told: dict[str, Told] = {}
    lines_of: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        name = ""
        for line in read_lines(file):
            if line.get("what") == "case begun":
                name = str(line["case"])
                told[name], lines_of[name] = Told("did not end"), []
            elif line.get("what") == "case ended":
                told[name] = Told(line["outcome"], line["taken_s"], tuple(line["tail"]))
            elif name:
                lines_of[name].append(line)
    return told, lines_of


def read_lines(file: Path) -> list[dict[str, Any]]:
    """Of JSON; what is cut off is left out, and a file that is not there is empty."""
    found: list[dict[str, Any]] = []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def table_of(files: Sequence[Path], cases: Sequence[Case]) -> str:
    """Of the cases that ran."""
    told, lines_of = recorded(files)
    runs = [line for lines in lines_of.values() for line in lines if line.get("what") == "run"]
    heads = dict.fromkeys(f"{run['device']}; commit {run['commit']}, sources {run['sources']}" for run in runs)
    return table(" | ".join(heads), [case for case in cases if case.name in told], told, lines_of)


def chosen(cases: Sequence[Case], only: str) -> list[Case]:
    """With what they need; SystemExit for a name that there is not."""
    by_name = {case.name: case for case in cases}
    names = {name for name in only.split(",") if name} or set(by_name)
    if unknown := names - by_name.keys():
        raise SystemExit(f"no case is called {', '.join(sorted(unknown))}; there are: {', '.join(by_name)}")
    while more := {need for name in names for need in by_name[name].needs} - names:
        names |= more
    return [case for case in cases if case.name in names]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("--out", type=Path)
    wanted.add_argument("--table", type=Path, nargs="+")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--only", default="", help="names of cases; what they need runs as well")
    parser.add_argument("--work", type=Path, help="default: a temporary folder, deleted at the end")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    cases = chosen(gpu_cases(is_tiny=options.tiny), options.only)
    if options.table:
        print(table_of(options.table, cases))
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = (options.work or Path(tempfile.mkdtemp(prefix="cairn-bench-"))).resolve()
    run_of_all = Run(cases, options.out.resolve(), work, options.seconds, kills_children=adopt_orphans())
    try:
        run_of_all.run()
    finally:
        print(run_of_all.table, flush=True)
        if options.work is None:
            shutil.rmtree(work, ignore_errors=True)
    raise SystemExit(0 if run_of_all.all_done else 1)


if __name__ == "__main__":
    main()
