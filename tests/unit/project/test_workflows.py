"""The workflows of .github: a step fails with any command of its pipes, and a Mac must do what it can."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[3] / ".github/workflows"
PIPE = re.compile(r"(?<!\|)\|(?!\|)")


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / name).read_text())
    return found


def steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("name", sorted(file.name for file in FOLDER.glob("*.yml")))
def test_a_pipe_fails_with_any_of_its_commands(name: str) -> None:
    workflow = read(name)
    shell = workflow.get("defaults", {}).get("run", {}).get("shell")
    piped = [step["name"] for step in steps(workflow) if PIPE.search(step.get("run", ""))]
    assert not piped or shell == "bash", f"{piped} run without pipefail"


def test_behaviour_is_required_on_a_mac_and_exactness_is_told() -> None:
    by_marker = {
        found[1]: step
        for step in steps(read("macos.yml"))
        if (found := re.search(r"-m ('not exact'|exact) ", step.get("run", "")))
    }
    assert by_marker.keys() == {"'not exact'", "exact"}
    assert "continue-on-error" not in by_marker["'not exact'"]
    assert by_marker["exact"]["continue-on-error"] is True
    uploaded = next(step["with"]["path"] for step in steps(read("macos.yml")) if step.get("name") == "Results")
    assert {"behaviour.xml", "exact.xml"} <= set(uploaded.split())
