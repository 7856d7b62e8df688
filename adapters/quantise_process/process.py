"""Both ends of a quantiser in a process of its own, at the lowest priority: what it holds, and a call into the device
that ends a process, are not the server's.

    server                            process, one for each call
    Call, a line               ──►
                               ◄──    QuantProgress, lines, then Planned, Written or Refused

The process ends with its pipe, and so with the server. The server kills it to stop: what is written stays whole.
"""

import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic
from typing import IO, Any, TypeAlias

import msgspec

from application.installation import child_environment
from application.ports.quantiser import Quantiser, QuantOrder, QuantPhase, QuantProgress, QuantReceipt
from application.services.faults import described
from domain.errors import DomainError, InvalidRequest, ModelLoadFailed, ServerUnavailable
from domain.models.quantisation import QuantPlan

INTERVAL_S = 0.25
"""The time between two reports, at least in the process and at most in the server."""

PASSED = frozenset({"PATH", "PYTHONPATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "XDG_CACHE_HOME"})
"""The variables that the process inherits, and those of MLX and Cairn's BLAS: no key is among them."""

_NICEST = 19

Report: TypeAlias = Callable[[QuantProgress], None]


class Call(msgspec.Struct, frozen=True, tag="call"):
    """`plans`: only the plan is wanted. `memory_dir`: as of the quantiser; empty for none."""

    order: QuantOrder
    plans: bool
    memory_dir: str = ""


class Reported(msgspec.Struct, frozen=True, tag="progress"):
    progress: QuantProgress


class Planned(msgspec.Struct, frozen=True, tag="plan"):
    plan: QuantPlan


class Written(msgspec.Struct, frozen=True, tag="receipt"):
    receipt: QuantReceipt


class Refused(msgspec.Struct, frozen=True, tag="refusal"):
    """`param`: the order's field; None for the source. `is_fault`: neither is to blame, but the disk or the process."""

    message: str
    param: str | None = None
    is_fault: bool = False


_Reply: TypeAlias = Reported | Planned | Written | Refused


# ---- the server's end ------------------------------------------------------------------------------------------------


class QuantiserProcess:
    """See `Quantiser`. `module`: run as `python -m`; it calls `serve`."""

    def __init__(self, module: str, memory_dir: str = "") -> None:
        self._command = (sys.executable, "-P", "-m", module)  # -P: nothing of the current folder
        self._memory_dir = memory_dir

    def plan(self, order: QuantOrder, report: Report) -> QuantPlan:
        found = self._ask(Call(order, True, self._memory_dir), report)
        assert isinstance(found, Planned)
        return found.plan

    def run(self, order: QuantOrder, report: Report) -> QuantReceipt:
        found = self._ask(Call(order, False, self._memory_dir), report)
        assert isinstance(found, Written)
        return found.receipt

    def _ask(self, call: Call, report: Report) -> Planned | Written:
        with subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            process_group=0,  # no Ctrl-C of a terminal; in a session of its own Linux would not heed its priority
        ) as process:
            try:
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(msgspec.json.encode(call) + b"\n")
                process.stdin.flush()
                found = _answer(process.stdout, report)
            finally:
                process.kill()
        if found is None:
            how = f"signal {-process.returncode}" if process.returncode < 0 else f"status {process.returncode}"
            raise ServerUnavailable(f"the process that quantises ended with {how}; the same order continues")
        if isinstance(found, Refused):
            if found.is_fault:
                raise ServerUnavailable(found.message)
            kind = ModelLoadFailed if found.param is None else InvalidRequest
            raise kind(found.message, param=found.param)
        return found


def _answer(pipe: IO[bytes], report: Report) -> Planned | Written | Refused | None:
    """The last line of a process; None if it ended without one. What `report` raises passes through."""
    decoder: msgspec.json.Decoder[_Reply] = msgspec.json.Decoder(_Reply)
    rest, last = b"", QuantProgress(QuantPhase.READING)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(INTERVAL_S):
                report(last)  # for it to stop a process that is silent
                continue
            chunk = os.read(pipe.fileno(), 1 << 16)
            if not chunk:
                return None
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                reply = decoder.decode(line)
                if not isinstance(reply, Reported):
                    return reply
                last = reply.progress
                report(last)


def _environment() -> Mapping[str, str]:
    wanted = ("MLX_", "CAIRN_BLAS", "CUDA_", "OMP_", "OPENBLAS_")
    found = {name: value for name, value in child_environment().items() if name in PASSED or name.startswith(wanted)}
    return {"OMP_NUM_THREADS": "1"} | found  # the others are the server's


# ---- the process's end -----------------------------------------------------------------------------------------------


def serve(make: Callable[[str], Quantiser]) -> int:
    """Answers one call and returns the exit status. `make`: the quantiser, by `memory_dir`. Main thread."""
    with suppress(OSError):
        os.nice(_NICEST)
        if sys.platform == "linux":  # any other process that wakes up takes its processor at once
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    output = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what libraries print is no answer
    call = msgspec.json.decode(sys.stdin.buffer.readline(), type=Call)
    _end_with_parent()
    reported_s = 0.0
    shown: Any = None

    def report(now: QuantProgress) -> None:
        nonlocal reported_s, shown
        if now.phase is shown and monotonic() - reported_s < INTERVAL_S:
            return
        reported_s, shown = monotonic(), now.phase
        output.write(msgspec.json.encode(Reported(now)) + b"\n")

    reply: _Reply
    try:
        quantiser = make(call.memory_dir)
        reply = (
            Planned(quantiser.plan(call.order, report)) if call.plans else Written(quantiser.run(call.order, report))
        )
    except DomainError as error:
        reply = Refused(error.message, error.param)
    except OSError as error:
        reply = Refused(f"the disk failed: {error}", is_fault=True)
    except Exception as error:
        reply = Refused(f"quantising failed: {described(error)}", is_fault=True)
    output.write(msgspec.json.encode(reply) + b"\n")
    return 0


def _end_with_parent() -> None:
    """Ends this process when its input does: the server is gone."""
    from threading import Thread

    def wait() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(1)

    Thread(target=wait, daemon=True, name="parent").start()
