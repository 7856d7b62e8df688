"""The service of one user, as a systemd unit and as a launchd agent: the texts of their files.

Paths and names come from the user's environment and are quoted as the readers of the files take them apart. What
cannot be quoted in one line, such as a line break, is refused.
"""

import plistlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.errors import require

UNIT = "cairn.service"
LABEL = "dev.cairn.server"
AGENT_LOG = "CAIRN_AGENT_LOG"
"""The variable by which a server knows that it is launchd's agent, and the file of its log."""

_BARE = re.compile(r"[A-Za-z0-9_./:@+,=-]+")

_UNIT = """\
# The service of one user, written by `cairn service install`.

[Unit]
Description=Cairn, an LLM inference server
StartLimitIntervalSec=10min
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
WatchdogSec=2min
ExecStart={command}
{variables}Restart=on-failure
RestartSec=5
RestartPreventExitStatus=2
TimeoutStopSec=90
KillMode=mixed
NoNewPrivileges=yes
LimitCORE=0
UMask=0077

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """The parts of a service file that depend on the user. `command`: the absolute path of `cairn`. `model`: its
    argument; empty for the model of the settings. `variables`: for the server, without secrets."""

    command: str
    model: str = ""
    variables: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        require(self.command.startswith("/"), "command", "must be an absolute path")
        for name, text in {"command": self.command, "MODEL": self.model, **self.variables}.items():
            require(text.isprintable(), name, "must be printable text on one line to stand in a service file")

    @property
    def arguments(self) -> tuple[str, ...]:
        """A model that begins with a dash is no option."""
        return ("serve", *(("--", self.model) if self.model.startswith("-") else filter(None, (self.model,))))


def systemd_unit(facts: ServiceFacts) -> str:
    """The text of the user unit. See systemd.service(5), "Command lines": `%` begins a specifier everywhere, and `$` a
    variable in arguments only, neither in the path of a command nor in Environment=. Raises InvalidRequest for a path
    that systemd does not take."""
    require(not set(facts.command) & set("\"'\\"), "command", "must be a path without quotes and backslashes")
    words = [_word(facts.command), *(_word(argument.replace("$", "$$")) for argument in facts.arguments)]
    variables = "".join(f"Environment={_word(f'{name}={value}')}\n" for name, value in facts.variables.items())
    return _UNIT.format(command=" ".join(words), variables=variables)


def _word(text: str) -> str:
    if _BARE.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"'


def launchd_agent(facts: ServiceFacts, log: str) -> str:
    """The text of the property list. launchd expands nothing in it. `log`: the file of the server's output, which
    launchd opens by that name."""
    require(log.isprintable(), "HOME", "must be printable text on one line to stand in a service file")
    agent = {
        "Label": LABEL,
        "ProgramArguments": [facts.command, *facts.arguments],
        "EnvironmentVariables": {**facts.variables, AGENT_LOG: log},
        "LimitLoadToSessionType": ["Aqua", "Background"],
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ThrottleInterval": 10,
        "ExitTimeOut": 90,
        "ProcessType": "Interactive",
        "SoftResourceLimits": {"NumberOfFiles": 8192},
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(agent, sort_keys=False).decode()
