"""`cairn service` writes a private file, asks before it replaces one, and drives the service manager."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.system.user_service import MAX_LOG_BYTES, Launchd, ServiceFailed, write_service
from domain.setup.service_file import AGENT_LOG, ServiceFacts, systemd_unit
from tests.support.processes.cli_process import run_cairn, run_here
from tests.support.processes.fake_commands import FakeCommands
from tests.support.processes.processes import ENVIRONMENT, ROOT

UNIT = ".config/systemd/user/cairn.service"
STATE = "ActiveState=active\nSubState=running\nMainPID=7\nNRestarts=0\nResult=success\n"

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="systemd is not the manager here")


@pytest.fixture
def manager(tmp_path: Path) -> FakeCommands:
    commands = FakeCommands(tmp_path)
    commands.add("systemctl", {"show": STATE})
    commands.add("loginctl")
    return commands


def service(
    commands: FakeCommands, *arguments: str, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess[str]:
    path = f"{commands.folder}:{os.environ['PATH']}"
    return run_here(commands.folder.parent, "service", *arguments, stdin=stdin, PATH=path, **variables)


@on_linux
def test_install_writes_a_private_file_and_starts_it(manager: FakeCommands, tmp_path: Path) -> None:
    secret = "hunter2"
    done = service(manager, "install", "org/m", HF_HOME="/a b/%h", CAIRN_SERVER__API_KEY=secret, HF_TOKEN=secret)
    assert done.returncode == 0, done.stderr
    file = tmp_path / UNIT
    text = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    assert text == systemd_unit(
        ServiceFacts(str(Path(sys.executable).parent / "cairn"), "org/m", {"HF_HOME": "/a b/%h"})
    )
    assert secret not in text
    assert "does not get CAIRN_SERVER__API_KEY" in done.stderr
    assert manager.words() == [
        "systemctl --user daemon-reload",
        "systemctl --user enable cairn.service",
        "systemctl --user restart --no-block cairn.service",
        "loginctl enable-linger",
    ]


@on_linux
@pytest.mark.parametrize(("answer", "is_replaced"), [("y\n", True), ("n\n", False), ("", False)])
def test_a_different_file_is_replaced_only_if_the_user_says_so(
    manager: FakeCommands, tmp_path: Path, answer: str, is_replaced: bool
) -> None:
    write_service(tmp_path / UNIT, "[Service]\n# mine\n")
    done = service(manager, "install", stdin=answer)
    assert f"Replace {tmp_path / UNIT}" in done.stderr
    assert ("# mine" in (tmp_path / UNIT).read_text()) is not is_replaced
    assert bool(manager.calls()) is is_replaced
    assert done.returncode == (0 if is_replaced else 1)


@on_linux
def test_print_shows_the_file_and_changes_nothing(manager: FakeCommands, tmp_path: Path) -> None:
    done = service(manager, "install", "org/m", "--print")
    assert done.returncode == 0, done.stderr
    command = str(Path(sys.executable).parent / "cairn")
    assert done.stdout.rstrip() == systemd_unit(ServiceFacts(command, "org/m", {})).rstrip()
    assert (manager.calls(), (tmp_path / UNIT).exists()) == ([], False)


@on_linux
def test_the_same_file_needs_no_answer(manager: FakeCommands) -> None:
    assert service(manager, "install").returncode == 0
    again = service(manager, "install")
    assert (again.returncode, "Replace" in again.stderr) == (0, False)


@on_linux
def test_a_file_reached_through_a_link_is_not_written(manager: FakeCommands, tmp_path: Path) -> None:
    mine = tmp_path / "dotfiles.service"
    mine.write_text("# mine")
    (tmp_path / UNIT).parent.mkdir(parents=True)
    (tmp_path / UNIT).symlink_to(mine)
    done = service(manager, "install", "--yes")
    assert (done.returncode, mine.read_text()) == (1, "# mine")
    assert "not a file" in done.stderr


@on_linux
@pytest.mark.parametrize(
    ("arguments", "variables", "name"),
    [(["a\nb"], {}, "MODEL"), ([], {"HF_HOME": "/a\nExecStartPre=/bin/x"}, "HF_HOME")],
)
def test_line_breaks_are_refused_by_name(
    manager: FakeCommands, tmp_path: Path, arguments: list[str], variables: dict[str, str], name: str
) -> None:
    done = service(manager, "install", "--yes", "--", *arguments, **variables)
    assert (done.returncode, manager.calls()) == (2, [])
    assert done.stderr.startswith(f"cairn: {name} must be printable text on one line")
    assert not (tmp_path / UNIT).exists()


@on_linux
def test_status_and_uninstall(manager: FakeCommands, tmp_path: Path) -> None:
    absent = service(manager, "status")
    assert (absent.returncode, manager.calls()) == (1, [])
    assert "no service is installed" in absent.stderr
    service(manager, "install")
    running = service(manager, "status")
    assert (running.returncode, running.stdout.splitlines()[1]) == (
        0,
        "active (running), pid 7, 0 restarts, result success",
    )
    kept = service(manager, "uninstall", stdin="n\n")
    assert (kept.returncode, (tmp_path / UNIT).exists()) == (1, True)
    gone = service(manager, "uninstall", "--yes")
    assert (gone.returncode, (tmp_path / UNIT).exists()) == (0, False)
    assert manager.words()[-2:] == [
        "systemctl --user disable --now cairn.service",
        "systemctl --user daemon-reload",
    ]


@on_linux
def test_a_manager_that_refuses_is_quoted_and_the_file_stays(tmp_path: Path) -> None:
    commands = FakeCommands(tmp_path)
    commands.add("systemctl", failing="disable")
    commands.add("loginctl", failing="enable-linger")
    installed = service(commands, "install")
    assert (installed.returncode, "it stops when you log out" in installed.stderr) == (0, True)
    done = service(commands, "uninstall", "--yes")
    assert (done.returncode, (tmp_path / UNIT).exists()) == (1, True)
    assert "disable is refused" in done.stderr


@on_linux
def test_logs_are_the_journals(tmp_path: Path) -> None:
    commands = FakeCommands(tmp_path)
    commands.add("journalctl")
    done = run_cairn(tmp_path, "service", "logs", "-n", "5", "-f", PATH=str(commands.folder))
    assert done.returncode == 0, done.stderr
    assert commands.words() == ["journalctl --user --unit=cairn.service --lines=5 --no-pager --follow"]


def test_launchd_is_driven_by_launchctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = FakeCommands(tmp_path)
    shown = "gui/0/dev.cairn.server = {\n\tstate = running\n\tpid = 41\n\tlast exit code = 0\n}\n"
    commands.add("launchctl", {"print": shown})
    monkeypatch.setenv("PATH", str(commands.folder))
    agent = Launchd({"HOME": str(tmp_path)})
    write_service(agent.file, agent.text(ServiceFacts("/usr/local/bin/cairn")))
    assert agent.problem(agent.file.read_text()) == ""
    agent.start()
    assert agent.state() == (True, "state running, pid 41, last exit code 0")
    assert agent.log_command(5, follow=True) == ["tail", "-n", "5", "-F", str(tmp_path / "Library/Logs/cairn.log")]
    agent.remove()
    target = f"gui/{os.getuid()}/dev.cairn.server"
    assert [word for word in commands.words() if " print " not in word] == [
        f"launchctl bootout {target}",
        f"launchctl bootstrap gui/{os.getuid()} {agent.file}",
        f"launchctl bootout {target}",
    ]
    assert not agent.file.exists()


def test_launchd_takes_an_agent_of_a_user_without_a_graphical_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over SSH."""
    commands, uid = FakeCommands(tmp_path), os.getuid()
    commands.add("launchctl", failing=f"gui/{uid}", status=125)
    monkeypatch.setenv("PATH", str(commands.folder))
    agent = Launchd({"HOME": str(tmp_path)})
    agent.start()
    assert [word for word in commands.words() if " bootstrap " in word] == [
        f"launchctl bootstrap gui/{uid} {agent.file}",
        f"launchctl bootstrap user/{uid} {agent.file}",
    ]
    commands.add("launchctl", failing=f"gui/{uid}/dev.cairn.server", status=113)
    agent.state()
    write_service(agent.file, "")
    agent.remove()
    assert [word for word in commands.words() if " bootout " in word][-1] == (
        f"launchctl bootout user/{uid}/dev.cairn.server"
    )


@pytest.mark.parametrize(("status", "said"), [(125, "user"), (5, "gui")])
def test_a_refusal_of_launchd_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, said: str
) -> None:
    commands, uid = FakeCommands(tmp_path), os.getuid()
    commands.add("launchctl", failing="bootstrap", status=status)
    monkeypatch.setenv("PATH", str(commands.folder))
    with pytest.raises(ServiceFailed, match=f"launchctl bootstrap {said}/{uid} .*: bootstrap is refused"):
        Launchd({"HOME": str(tmp_path)}).start()


@pytest.mark.parametrize(("is_agent", "status"), [(True, 0), (False, 2)])
def test_wrong_settings_do_not_restart_an_agent_for_ever(tmp_path: Path, *, is_agent: bool, status: int) -> None:
    variables = {AGENT_LOG: str(tmp_path / "cairn.log")} if is_agent else {}
    done = run_cairn(tmp_path, "serve", CAIRN_SERVER__PORT="none", **variables)
    assert (done.returncode, "cairn service install" in done.stderr) == (status, is_agent)
    assert "server.port" in done.stderr


def test_an_agent_moves_a_large_log_away_when_it_starts(tmp_path: Path) -> None:
    log = tmp_path / "cairn.log"
    for grown_bytes, old_bytes in ((MAX_LOG_BYTES, None), (MAX_LOG_BYTES + 1, MAX_LOG_BYTES + 1)):
        with log.open("ab") as stream:
            stream.truncate(grown_bytes)
            command = [sys.executable, "-m", "cairn", "status", "--url", "nonsense"]
            environment = {**ENVIRONMENT, AGENT_LOG: str(log)}
            subprocess.run(command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, check=True, timeout=60)
        assert ((tmp_path / "cairn.log.1").stat().st_size if old_bytes else None) == old_bytes
    assert log.read_text().startswith("cairn: nonsense is not a valid server URL")


def test_a_machine_without_a_manager_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceFailed, match=r"launchctl is not on this machine: see docs/deploy\.md"):
        Launchd({"HOME": str(tmp_path)}).state()
