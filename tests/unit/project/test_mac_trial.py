"""deploy/mac_trial.py, the trial for a Mac: its plan, journal and table, and a short run on the toy engine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.mac_trial import STEPS, Journal, Row, engine_pids, parsed, plan, prompt_of, run_step, table, wired_bytes
from tests.support.patience import PATIENCE_S
from tests.support.processes.cli_process import ROOT, environment

VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               12345.
Pages wired down:                        131072.
"""


def test_it_says_what_it_will_do_and_what_may_happen() -> None:
    told = plan(["churn", "long"], 0.5)
    assert "for 0.5 minutes" in told
    assert "100,000 tokens" in told
    assert "Kernel panics" in told
    assert "mlx_lm.server" not in told
    options = parsed([])
    assert (options.model, options.minutes, options.steps) == ("cairn-demo", 20, list(STEPS))


@pytest.mark.parametrize("tail", ["", '{"alive": "long", "aft'])
def test_a_step_that_ended_with_the_machine_is_a_row(tmp_path: Path, tail: str) -> None:
    journal = Journal(tmp_path / "journal")
    journal.add(begun="churn")
    journal.add(step="churn", result="passed", detail="10 prompts")
    journal.add(ended="churn")
    journal.add(begun="long")
    journal.add(alive="long", after_s=105.2)
    with (tmp_path / "journal").open("a") as file:
        file.write(tail)
    churn, long = journal.rows()
    assert churn == Row("churn", "passed", "10 prompts")
    assert (long.step, long.result) == ("long", "NO END")
    assert "105 s" in long.detail


class Broken:
    def kill(self) -> None:
        raise ZeroDivisionError("by | nothing\nat all")


def test_a_failure_is_a_row_of_the_table(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    run_step("kill", journal, Broken())  # type: ignore[arg-type]
    assert table({"machine": "a Mac"}, journal.rows()).splitlines() == [
        "| step | result | detail |",
        "|---|---|---|",
        "| machine | a Mac |  |",
        "| kill | FAILED | ZeroDivisionError: by / nothing at all |",
    ]


def test_what_is_read_from_others() -> None:
    assert wired_bytes(VM_STAT) == 2 << 30
    assert wired_bytes("") is None
    assert engine_pids("INFO the engine runs in process 12\nx\nINFO the engine runs in process 345\n") == [12, 345]
    assert prompt_of(100, "a").split()[0] != prompt_of(100, "b").split()[0]


def test_a_dry_run_on_the_toy_engine(tmp_path: Path) -> None:
    """A journal from before is continued: what it has a row of is not done again."""
    journal = tmp_path / "journal"
    journal.write_text(json.dumps({"begun": "long"}) + "\n")
    command = ["deploy/mac_trial.py", "--model", "fake-attention", "--minutes", "0.01", "--yes"]
    steps = ["--journal", str(journal), "--steps", "churn", "long", "sleep", "kill"]
    done = subprocess.run(
        [sys.executable, *command, *steps], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env=environment(tmp_path, CAIRN_ENGINE__BACKEND="fake"),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rows = {row.step: row for row in Journal(journal).rows()}
    results = {step: row.result for step, row in rows.items()}
    assert results == {"churn": "passed", "sleep": "skipped", "kill": "passed", "long": "NO END"}, done.stdout
    assert "1 of 1 texts as undisturbed" in rows["kill"].detail
    assert all(f"| {row.step} | {row.result} | " in done.stdout for row in rows.values())
