"""What a server does for whoever started it: tells systemd how it is, and ends when it hangs and that was asked for."""

import os
import sys
from typing import TYPE_CHECKING

from adapters.system.native_watch import NativeWatch
from adapters.system.systemd import systemd_supervisor
from application.ports.supervision import LastResort, NoLastResort, NoSupervisor, Supervisor

if TYPE_CHECKING:
    from application.settings import EngineSettings


def supervisor_here() -> Supervisor:
    return systemd_supervisor() or NoSupervisor()


def last_resort_here(settings: "EngineSettings", stuck_after_s: float) -> LastResort:
    """It ends the process where that is set, and else only writes where every thread is."""
    exit_s = settings.exit_when_stuck_s
    try:
        return NativeWatch(exit_s or stuck_after_s, sys.stderr, exits=exit_s is not None)
    except (OSError, ValueError):  # standard error is closed, or no file: there is nowhere to write to
        return NoLastResort()


def leave_stuck(status: int) -> None:
    """End the process as it is: what hangs would hang any other end of it too."""
    os._exit(status)


__all__ = ("last_resort_here", "leave_stuck", "supervisor_here")
