"""systemd's notification protocol: a datagram of `NAME=value` lines to the socket that `NOTIFY_SOCKET` names.

    READY=1           the unit has started (Type=notify)
    WATCHDOG=1 the server makes progress; without it for WatchdogSec= systemd restarts the process EXTEND_TIMEOUT_USEC=
    before READY=1: loading a model may take longer than a start may
    STOPPING=1        the server was asked to stop

See sd_notify(3). A name that begins with `@` is in the abstract namespace of Linux. Sending never waits: a datagram
that finds no room is lost, and the next one follows a second later.
"""

import os
import socket
from collections.abc import Mapping

EXTENSION_S = 60
"""The extension of the start timeout that each report requests."""


class SystemdNotifier:
    """A ServiceManager that reports to systemd. `close` closes the socket; later reports are dropped."""

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
        """Sends READY=1, repeated until it was sent, because systemd waits for it."""
        self._is_ready_sent = self._send("READY=1\nSTATUS=serving\nWATCHDOG=1")

    def _send(self, message: str) -> bool:
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:  # no listener, or no room: see above
            return False
        return True


def systemd_notifier(environment: Mapping[str, str] = os.environ) -> SystemdNotifier | None:
    """The supervisor for this environment; None if NOTIFY_SOCKET names no socket."""
    address = environment.get("NOTIFY_SOCKET", "")
    return SystemdNotifier(address) if address[:1] in ("/", "@") and len(address) > 1 else None
