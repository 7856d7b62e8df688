"""Service files: the systemd unit and the launchd agent, with any path and name, and in the documentation."""

import plistlib
import re
import shutil
import sys
from pathlib import Path

import pytest

from adapters.system.user_service import Systemd
from domain.errors import InvalidRequest
from domain.setup.service_file import AGENT_LOG, ServiceFacts, launchd_agent, systemd_unit

ROOT = Path(__file__).parents[4]
ODD_MODEL = '-50% of $HOME "it\'s" \\ ;'
ODD_VALUE = 'a b/$c %h "x" \\ ;'

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")


def test_the_documentation_and_deploy_show_what_is_written() -> None:
    text = (ROOT / "docs/deploy.md").read_text()
    (shown,) = re.findall(r"^```ini\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert shown == systemd_unit(ServiceFacts("/home/YOU/.local/bin/cairn"))
    agent = launchd_agent(ServiceFacts("/Users/YOU/.local/bin/cairn"), "/Users/YOU/Library/Logs/cairn.log")
    assert (ROOT / "deploy/dev.cairn.server.plist").read_text() == agent


@needs_systemd
def test_systemd_finds_a_command_with_any_name_that_it_allows(tmp_path: Path) -> None:
    odd = tmp_path / "a b $HOME %h é;" / "cairn"
    odd.parent.mkdir()
    odd.symlink_to(sys.executable)
    unit = systemd_unit(ServiceFacts(str(odd), ODD_MODEL, {"HF_HOME": ODD_VALUE}))
    manager = Systemd({"HOME": str(tmp_path)})
    assert manager.problem(unit) == ""
    assert "not executable" in manager.problem(unit.replace("%%h", "%h"))


def test_words_of_the_unit_are_quoted() -> None:
    unit = systemd_unit(ServiceFacts("/a b/cairn", ODD_MODEL, {"HF_HOME": ODD_VALUE}))
    (command,) = re.findall("^ExecStart=(.*)$", unit, re.MULTILINE)
    assert command == '"/a b/cairn" serve -- "-50%% of $$HOME \\"it\'s\\" \\\\ ;"'
    (variable,) = re.findall("^Environment=(.*)$", unit, re.MULTILINE)
    assert variable == '"HF_HOME=a b/$c %%h \\"x\\" \\\\ ;"'


def test_the_agent_has_every_text_as_it_is() -> None:
    facts = ServiceFacts("/a b/<cairn>&", ODD_MODEL, {"HF_HOME": ODD_VALUE})
    agent = plistlib.loads(launchd_agent(facts, "/x y/cairn.log").encode())
    assert agent["ProgramArguments"] == ["/a b/<cairn>&", "serve", "--", ODD_MODEL]
    assert agent["EnvironmentVariables"] == {"HF_HOME": ODD_VALUE, AGENT_LOG: "/x y/cairn.log"}
    assert agent["LimitLoadToSessionType"] == ["Aqua", "Background"]
    assert agent["StandardErrorPath"] == "/x y/cairn.log"
    assert agent["Umask"] == 0o077


@pytest.mark.parametrize(
    ("command", "model", "value", "name"),
    [
        ("/a\nExecStartPre=/bin/x", "", "", "command"),
        ("cairn", "", "", "command"),
        ("/cairn", "m\n[Install]", "", "MODEL"),
        ("/cairn", "", "x\r\ny", "HF_HOME"),
        ("/cairn", "", "\udcff", "HF_HOME"),
    ],
)
def test_what_cannot_be_quoted_is_refused_by_name(command: str, model: str, value: str, name: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"^{name} must be"):
        ServiceFacts(command, model, {"HF_HOME": value})


def test_systemd_takes_no_quotes_in_the_path_of_a_command() -> None:
    with pytest.raises(InvalidRequest, match=r"^command must be a path without quotes"):
        systemd_unit(ServiceFacts('/a"b/cairn'))
