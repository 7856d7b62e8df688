"""The server's side of whatever started it: reports to systemd, and the end of a process that hangs."""

import os

from adapters.system.systemd import systemd_supervisor
from application.ports.supervision import NoSupervisor, Supervisor


def supervisor_here() -> Supervisor:
    return systemd_supervisor() or NoSupervisor()


def leave_stuck(status: int) -> None:
    """End the process as it is: what hangs would hang any other end of it too."""
    os._exit(status)


__all__ = ("leave_stuck", "supervisor_here")
