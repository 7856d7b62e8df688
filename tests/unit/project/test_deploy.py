"""The files of deploy/ and docs/deploy.md agree with the code; systemd reads the units, where it is installed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path

import pytest

from adapters.config.fields import setting_fields
from adapters.config.loader import load_settings
from application.services.text_side.supervision.engine_watch import EXIT_STUCK
from domain.health.engine_health import ENDED, EVENT_LOOP, WAITING
from interfaces.cli.terminal.ending import USAGE
from interfaces.composition.backends import STUCK_AFTER_CPU_S, STUCK_AFTER_GPU_S
from interfaces.http.incoming.request_context import HEALTH_PATHS

ROOT = Path(__file__).parents[3]
DEPLOY = ROOT / "deploy"
TEXT = (ROOT / "docs/deploy.md").read_text()
UNIT = (DEPLOY / "cairn.service").read_text()
(USER_UNIT,) = re.findall(r"^```ini\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
IMAGES = ["Containerfile", "Containerfile.cuda"]


def unit_of(text: str) -> RawConfigParser:
    found = RawConfigParser(strict=True)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text)
    return found


@pytest.mark.parametrize("text", [UNIT, USER_UNIT], ids=["machine", "user"])
def test_the_unit_is_notified_when_cairn_is_ready_and_restarts_it(text: str) -> None:
    service = unit_of(text)["Service"]
    assert service["Type"] == "notify"
    assert service["WatchdogSec"] == "2min"
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(USAGE) != str(EXIT_STUCK)
    assert service["ExecStart"].endswith("/bin/cairn serve")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
@pytest.mark.parametrize(("text", "manager"), [(UNIT, "--system"), (USER_UNIT, "--user")], ids=["machine", "user"])
def test_systemd_takes_the_unit(text: str, manager: str, tmp_path: Path) -> None:
    """But for the program, which is not installed where the unit has it."""
    file, runtime = tmp_path / "cairn.service", tmp_path / "run"
    file.write_text(re.sub(r"^ExecStart=\S+", f"ExecStart={sys.executable}", text, flags=re.MULTILINE))
    runtime.mkdir(mode=0o700)
    reported = subprocess.run(
        ["systemd-analyze", manager, "--man=no", "verify", str(file)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(runtime)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (reported.returncode, [line for line in reported.stderr.splitlines() if "cairn" in line]) == (0, [])


def instructions(image: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", (DEPLOY / image).read_text(), flags=re.MULTILINE))
    return [(name, rest.strip()) for line in joined.splitlines() if line for name, _, rest in [line.partition(" ")]]


@pytest.mark.parametrize("image", IMAGES)
def test_images_are_made_of_what_is_here_and_run_as_nobody(image: str) -> None:
    found = instructions(image)
    copied = [shlex.split(rest)[:-1] for name, rest in found if name == "COPY" and "--from" not in rest]
    sources = [source for group in copied for source in group]
    assert set(sources) >= {"pyproject.toml", "constraints.txt", "domain", "application", "adapters", "interfaces"}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert kept == set(sources)
    assert all((ROOT / source).exists() for source in sources)
    assert [rest for name, rest in found if name == "USER"] == ["10001:10001"]
    assert [rest for name, rest in found if name in {"ENTRYPOINT", "CMD"}] == ['["cairn"]', '["serve"]']
    assert ("VOLUME", '["/data"]') in found


@pytest.mark.parametrize("image", IMAGES)
def test_images_set_what_can_be_set_and_ask_for_the_engines_health(image: str) -> None:
    text = " ".join(rest for name, rest in instructions(image) if name == "ENV")
    variables = {name: value for name, _, value in (part.partition("=") for part in shlex.split(text))}
    cairns = {name: value for name, value in variables.items() if name.startswith("CAIRN_")}
    settings = load_settings({**cairns, "CAIRN_CONFIG": "/dev/null", "CAIRN_SERVER__API_KEY": "k"}).settings
    assert (settings.server.host, settings.server.port) == ("0.0.0.0", 8000)
    (check,) = [rest for name, rest in instructions(image) if name == "HEALTHCHECK"]
    (path,) = re.findall(r"'(/health/\w+)'", check)
    assert path in HEALTH_PATHS
    compile(re.findall(r'"(import [^"]+)"', check)[0], image, "exec")


def test_the_text_says_what_the_code_does() -> None:
    assert f"{STUCK_AFTER_GPU_S:.0f} s on a GPU and {STUCK_AFTER_CPU_S:.0f} s on a CPU" in TEXT
    assert f"status {EXIT_STUCK} " in TEXT
    for word in (WAITING, ENDED, EVENT_LOOP):
        assert f"`{word}`" in TEXT
    for path in set(re.findall(r"`(?:GET )?(/health/\w+)`", TEXT)):
        assert path in HEALTH_PATHS
    for name in re.findall(r"`((?:engine|store)\.\w+)`", TEXT):
        assert name in setting_fields(), name
    for file in re.findall(r"deploy/([\w.]+\w)", TEXT):
        assert (DEPLOY / file).exists(), file
    for file in re.findall(r"\]\(([\w-]+\.md)\)", TEXT):
        assert (ROOT / "docs" / file).exists(), file
