"""systemd's notification protocol: a datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names.

    READY=1           the unit has started (Type=notify)
    WATCHDOG=1        all is well; missed for WatchdogSec=, systemd ends the process and starts it again
    EXTEND_TIMEOUT_USEC=  before READY=1: a model that is still being loaded is no start that failed
    STOPPING=1        it was asked to end

As sd_notify(3) has it. A name that begins with `@` is of the abstract namespace of Linux. Nothing is sent to anything
but a socket, and without waiting: a datagram that finds no room is lost, as the next one follows a second later.
"""

import os
import socket
from collections.abc import Mapping

EXTENSION_S = 60
"""How much longer a start may take from each sign of life on."""


class SystemdSupervisor:
    """A Supervisor. `close` gives the socket back; later reports go nowhere."""

    def __init__(self, address: str) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))
        self._socket.setblocking(False)
        self._is_ready = self._is_ready_sent = self._is_stopping = False

    def ready(self) -> None:
        if not self._is_ready and not self._is_stopping:
            self._is_ready = True
            self._send_ready()

    def moving(self) -> None:
        if self._is_ready and not self._is_ready_sent and not self._is_stopping:
            self._send_ready()
        elif self._is_ready:
            self._send("WATCHDOG=1")
        elif not self._is_stopping:
            self._send(f"EXTEND_TIMEOUT_USEC={EXTENSION_S * 1_000_000}")

    def stopping(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self._send("STOPPING=1\nSTATUS=finishing running requests")

    def close(self) -> None:
        self._socket.close()

    def _send_ready(self) -> None:
        """Said until it was sent: systemd waits for it."""
        self._is_ready_sent = self._send("READY=1\nSTATUS=serving\nWATCHDOG=1")

    def _send(self, message: str) -> bool:
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:  # no listener, or no room: see above
            return False
        return True


def systemd_supervisor(environment: Mapping[str, str] = os.environ) -> SystemdSupervisor | None:
    """None where systemd asks for no reports, or names no socket of this machine."""
    address = environment.get("NOTIFY_SOCKET", "")
    return SystemdSupervisor(address) if address[:1] in ("/", "@") and len(address) > 1 else None
