"""A process that ends: at its limit, or when it prints without end, with everything it started in its group.

It is asked first (SIGTERM), and killed if it stays. What it prints goes to a log, up to a bound; more is read and
dropped for a while, since who prints much may still finish, and then it is ended for that. Of what left its group (an
engine of Cairn's in a process of its own does) all is killed that comes to this process as an orphan.
"""

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.process_tree import children

GRACE_S = 5.0
"""Between asking and killing; and how long the last of its output is waited for after either."""
LOGGED_BYTES = 256 << 10
PRINTED_BYTES = 32 << 20
TAIL_LINES = 12


@dataclass(frozen=True, slots=True)
class Ended:
    """`outcome`: done, failed (`status` says how, negative for a signal), over time, printing, or stuck: killed, and
    still there (None). `tail`: its last lines."""

    outcome: str
    status: int | None
    taken_s: float
    tail: tuple[str, ...]


class Output:
    """What comes from a pipe, read until nobody can write to it any more."""

    def __init__(self, pipe: int, log: Path) -> None:
        self._pipe, self._log = pipe, log
        self._lock = threading.Lock()
        self._rest = b""
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self.is_too_much = threading.Event()
        self.thread = threading.Thread(target=self._read, name="bench-output", daemon=True)
        self.thread.start()

    @property
    def tail(self) -> tuple[str, ...]:
        with self._lock:
            lines = [*self._lines, self._rest]
        return tuple(line.decode(errors="replace")[:300] for line in lines if line.strip())[-TAIL_LINES:]

    def _read(self) -> None:
        num_bytes = 0
        with self._log.open("ab") as log, os.fdopen(self._pipe, "rb", buffering=0) as pipe:
            while piece := pipe.read(1 << 16):
                if num_bytes < LOGGED_BYTES:
                    log.write(piece[: LOGGED_BYTES - num_bytes])
                    log.flush()
                num_bytes += len(piece)
                if num_bytes > PRINTED_BYTES:
                    self.is_too_much.set()
                *lines, rest = (self._rest + piece).split(b"\n")
                with self._lock:
                    self._lines.extend(line[:1000] for line in lines)
                    self._rest = rest[-1000:]


def run(
    command: Sequence[str],
    environment: Mapping[str, str],
    limit_s: float,
    log: Path,
    cwd: Path,
    grace_s: float = GRACE_S,
    *,
    kills_children: bool = False,
) -> Ended:
    """Returns once the process has ended, and everything that is left of its group. `kills_children`: and every child
    that this process has then. Only for a process that adopts orphans and has no other children."""
    started = time.monotonic()
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env=dict(environment),
            cwd=cwd,
            process_group=0,  # of this session, so that who ends that ends this too
        )
    finally:
        os.close(writing)
    output = Output(reading, log)
    outcome = "done"
    try:
        while process.poll() is None:
            if output.is_too_much.is_set():
                outcome = "printing"
                break
            if time.monotonic() - started > limit_s:
                outcome = "over time"
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.1)
    finally:
        _end(process, grace_s)
        if kills_children:
            _kill_children(grace_s)
    output.thread.join(GRACE_S)
    if process.returncode is None:
        outcome = "stuck"
    elif outcome == "done" and process.returncode:
        outcome = "failed"
    return Ended(outcome, process.returncode, time.monotonic() - started, output.tail)


def _end(process: "subprocess.Popen[bytes]", grace_s: float) -> None:
    """The process, if it still runs, and whatever is left of its group."""
    if process.poll() is None:
        _signal(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(grace_s)
    _signal(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold on to it
        process.wait(GRACE_S)


def _kill_children(grace_s: float) -> None:
    """Whose own children come to this process as they die, and are killed in their turn."""
    deadline_s = time.monotonic() + grace_s
    while (left := children(os.getpid())) and time.monotonic() < deadline_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _signal(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


__all__ = ("GRACE_S", "Ended", "run")
