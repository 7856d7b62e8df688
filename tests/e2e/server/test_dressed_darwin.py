"""Cairn dressed as on a Mac, on Linux: every process believes that it runs on darwin, the engine's as well.

What runs on a Mac only is imported and called here, and must do without what Linux lacks: symbols of libc, frameworks,
commands, Metal. It proves that nothing crashes, not that Metal computes.
"""

import json
import os
import plistlib
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.patience import PATIENCE_S
from tests.support.processes.cli_process import ROOT, cairn_process, environment, run_cairn
from tests.support.processes.fake_commands import FakeCommands

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a Mac needs no dress")

DRESS = """
import os, sys, sysconfig, types
sysconfig.get_config_vars()  # from a file whose name has the true platform
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxies=dict, _get_proxy_settings=dict)
sys.platform = "darwin"
with open({worn!r}, "a") as worn:
    worn.write(f"{{os.getpid()}}\\n")
"""
PROBE = """
import dataclasses, json, sys
from adapters.system.machine import SystemMemory, open_file_limits, usable_cpus
assert sys.platform == "darwin" and usable_cpus() >= 1 and open_file_limits()
print(json.dumps(dataclasses.asdict(SystemMemory().read())))
"""


@pytest.fixture
def dress(tmp_path: Path) -> dict[str, str]:
    """The variables of a process that wears it; its children inherit them. `worn` has the ids of those that do."""
    folder = tmp_path / "dress"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(DRESS.format(worn=str(tmp_path / "worn")))
    return {"PYTHONPATH": str(folder)}


def check_unharmed(text: str) -> None:
    """What Linux lacks may be named in a warning, and raises nothing."""
    assert "Traceback" not in text, text


def test_doctor_and_plan_find_their_way(tmp_path: Path, dress: dict[str, str]) -> None:
    doctor, plan = (run_cairn(tmp_path, *words, **dress) for words in (("doctor", "--json"), ("plan", "cairn-demo")))
    found = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert "doctor" not in found, "a check failed itself"
    assert {"device", "memory", "may hold"} <= found.keys()
    assert plan.returncode == 0
    assert "may be held" in plan.stdout
    for done in (doctor, plan):
        check_unharmed(done.stdout + done.stderr)


def test_the_memory_probe_tells_what_it_can_and_guesses_nothing(tmp_path: Path, dress: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], cwd=ROOT, env=environment(tmp_path, **dress), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    reading = json.loads(done.stdout)
    assert reading["total_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("available_bytes", "held_bytes"):
        assert reading[name] is None or 0 < reading[name] <= reading["total_bytes"]


def test_a_server_answers_a_chat_and_ends_gently(tmp_path: Path, dress: dict[str, str]) -> None:
    unmeasured = {**dress, "CAIRN_MODEL__SPECULATION": "off"}  # whether drafts pay is measured for seconds
    with cairn_process(tmp_path, ("serve", "cairn-demo", "--port", "0"), **unmeasured) as cairn:
        engine = re.search(r"process (\d+)", cairn.read_until("the engine runs in process"))
        url = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
        assert engine
        assert url
        assert {engine[1], str(cairn.pid)} <= set((tmp_path / "worn").read_text().split())
        asked = {"messages": [{"role": "user", "content": "My cat is called Miso. What is my cat called?"}]}
        answer = httpx.post(f"{url[1]}/v1/chat/completions", json=asked, timeout=PATIENCE_S)
        assert "Miso" in answer.json()["choices"][0]["message"]["content"]
        for page in ("health/ready", "health/engine"):
            assert httpx.get(f"{url[1]}/{page}", timeout=PATIENCE_S).status_code == 200
        cairn.send(signal.SIGTERM)
        assert cairn.wait() == 0
        cairn.read_to_end()
        check_unharmed("".join(cairn.seen))
        with pytest.raises(ProcessLookupError):
            os.kill(int(engine[1]), 0)


def test_a_service_is_installed_as_an_agent_of_launchd(tmp_path: Path, dress: dict[str, str]) -> None:
    commands = FakeCommands(tmp_path)
    commands.add("launchctl", failing="print")  # nothing is loaded yet
    path = f"{commands.folder}:{os.environ['PATH']}"
    done = run_cairn(tmp_path, "service", "install", "cairn-demo", "--yes", PATH=path, **dress)
    assert done.returncode == 0, done.stderr
    check_unharmed(done.stdout + done.stderr)
    printed = run_cairn(tmp_path, "service", "install", "cairn-demo", "--print", PATH=path, **dress)
    check_unharmed(printed.stdout + printed.stderr)
    (file,) = (tmp_path / "Library/LaunchAgents").glob("*.plist")
    assert plistlib.loads(file.read_bytes())["ProgramArguments"][1:] == ["serve", "cairn-demo"]
    assert plistlib.loads(printed.stdout.encode()) == plistlib.loads(file.read_bytes())
    assert [words for words in commands.words() if re.fullmatch(rf"launchctl bootstrap \w+/\d+ {file}", words)]
