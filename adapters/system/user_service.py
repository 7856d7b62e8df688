"""The service managers of a user: systemd's on Linux, launchd on macOS. Each is driven by its own command."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeAlias

from adapters.system.private_file import private_file
from domain.printable import printable
from domain.setup.service_file import LABEL, UNIT, ServiceFacts, launchd_agent, systemd_unit

TIMEOUT_S = 60.0
MAX_CHARS = 2000
MAX_LOG_BYTES = 32 << 20
"""The size above which an agent moves its log away when it starts: launchd never does."""

_NO_SUCH_DOMAIN = 125


class ServiceFailed(Exception):
    """The service manager refused, or there is none. The message quotes it."""


def write_service(file: Path, text: str) -> None:
    """Writes the file, readable by its user only. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with private_file(file) as stream:
        stream.write(text.encode())


def bound_log(log: Path) -> None:
    """Begins a new log where this process's standard error is a file of this name that has grown large; the old one
    stays as NAME.1."""
    with suppress(OSError):
        status = os.stat(log)
        if status.st_size <= MAX_LOG_BYTES or not os.path.samestat(status, os.fstat(2)):
            return
        log.replace(f"{log}.1")
        new = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        for output in (1, 2):
            os.dup2(new, output)
        os.close(new)


class Systemd:
    """The service of one user under systemd's user manager. `file`: where it looks for the unit."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        home = Path(environment.get("HOME") or Path.home())
        base = Path(environment.get("XDG_CONFIG_HOME", ""))
        self.file = (base if base.is_absolute() else home / ".config") / "systemd" / "user" / UNIT

    def text(self, facts: ServiceFacts) -> str:
        return systemd_unit(facts)

    def problem(self, text: str) -> str:
        """systemd's objection to a file of this text; empty for none, or where it cannot be asked."""
        if shutil.which("systemd-analyze") is None:
            return ""
        with TemporaryDirectory() as folder:
            file = Path(folder) / UNIT
            file.write_text(text, encoding="utf-8")
            # Its own runtime folder: without a login there is none.
            environment = {"XDG_RUNTIME_DIR": folder, **os.environ}
            found = _run(["systemd-analyze", "--user", "--man=no", "verify", str(file)], environment)
        lines = [line for line in found.stderr.splitlines() if UNIT in line]  # others are about other units
        return printable(" ".join(lines), MAX_CHARS) if found.returncode or lines else ""

    def start(self) -> None:
        """Starts the service of the written file, now and at every login; one that runs is started anew. Does not wait
        until it serves. Raises ServiceFailed."""
        _must("systemctl", "--user", "daemon-reload")
        _must("systemctl", "--user", "enable", UNIT)
        _must("systemctl", "--user", "restart", "--no-block", UNIT)

    def stay(self) -> str:
        """Lets the service run without a login. Returns why it cannot; empty if it can."""
        try:
            _must("loginctl", "enable-linger")
        except ServiceFailed as why:
            return str(why)
        return ""

    def remove(self) -> None:
        """Stops the service, and removes its file. Raises ServiceFailed, and OSError."""
        _must("systemctl", "--user", "disable", "--now", UNIT)
        self.file.unlink()
        _must("systemctl", "--user", "daemon-reload")

    def state(self) -> tuple[bool, str]:
        """Whether it runs, and the state in words. Raises ServiceFailed."""
        names = ("ActiveState", "SubState", "MainPID", "NRestarts", "Result")
        shown = _must("systemctl", "--user", "show", UNIT, f"--property={','.join(names)}")
        found = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
        active, sub, pid, restarts, result = (printable(found.get(name, "?")) for name in names)
        parts = [f"{active} ({sub})", "" if pid in "0?" else f"pid {pid}", f"{restarts} restarts", f"result {result}"]
        return active == "active", ", ".join(filter(None, parts))

    def log_command(self, num_lines: int, *, follow: bool) -> Sequence[str]:
        tail = ["--follow"] if follow else []
        return ["journalctl", "--user", f"--unit={UNIT}", f"--lines={num_lines}", "--no-pager", *tail]


class Launchd:
    """The same as an agent of launchd: in the user's graphical login, or where there is none (over SSH) in the user's
    background session."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        home = Path(environment.get("HOME") or Path.home())
        self.file = home / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self._log = home / "Library" / "Logs" / "cairn.log"
        self._domains = f"gui/{os.getuid()}", f"user/{os.getuid()}"

    def text(self, facts: ServiceFacts) -> str:
        return launchd_agent(facts, str(self._log))

    def problem(self, text: str) -> str:
        if shutil.which("plutil") is None:
            return ""
        found = _run(["plutil", "-lint", "-"], os.environ, text)
        return printable(found.stdout + found.stderr, MAX_CHARS) if found.returncode else ""

    def start(self) -> None:
        self._end()
        login, background = [("launchctl", "bootstrap", domain, str(self.file)) for domain in self._domains]
        if (found := _run(login, os.environ)).returncode == _NO_SUCH_DOMAIN:
            _must(*background)
        else:
            _output(login, found)

    def stay(self) -> str:
        return "launchd ends a user's agents at logout"

    def remove(self) -> None:
        self._end()
        self.file.unlink()

    def _end(self) -> None:
        if _run(["launchctl", "print", target := self._target()], os.environ).returncode == 0:
            _must("launchctl", "bootout", target)

    def _target(self) -> str:
        """The agent by the session that has it; by the last one where none has."""
        login, background = [f"{domain}/{LABEL}" for domain in self._domains]
        return login if _run(["launchctl", "print", login], os.environ).returncode == 0 else background

    def state(self) -> tuple[bool, str]:
        shown = _must("launchctl", "print", self._target())
        found = dict(re.findall(r"^\t(state|pid|last exit code) = (.+)$", shown, re.MULTILINE))
        return found.get("state") == "running", printable(", ".join(f"{name} {value}" for name, value in found.items()))

    def log_command(self, num_lines: int, *, follow: bool) -> Sequence[str]:
        return ["tail", "-n", str(num_lines), *(["-F"] if follow else []), str(self._log)]


UserService: TypeAlias = Systemd | Launchd


def user_service(environment: Mapping[str, str]) -> UserService:
    """The service manager of this system."""
    return Launchd(environment) if sys.platform == "darwin" else Systemd(environment)


def _must(*command: str) -> str:
    """The output of a command that succeeds. Raises ServiceFailed."""
    return _output(command, _run(command, os.environ))


def _output(command: Sequence[str], found: "subprocess.CompletedProcess[str]") -> str:
    """The output of a command that has succeeded. Raises ServiceFailed."""
    if found.returncode:
        said = " ".join((found.stderr or found.stdout).split()) or f"status {found.returncode}"
        raise ServiceFailed(f"{' '.join(command)}: {printable(said, MAX_CHARS)}")
    return found.stdout


def _run(command: Sequence[str], environment: Mapping[str, str], stdin: str = "") -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end. Raises ServiceFailed if it is not there, or hangs."""
    try:
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except FileNotFoundError:
        raise ServiceFailed(f"{command[0]} is not on this machine: see docs/deploy.md for other ways") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ServiceFailed(f"{' '.join(command)}: {error}") from None
