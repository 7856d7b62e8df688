"""The server's end: an ImageProcessorLoader and a FileReader that work in processes, which are started on demand.

    none ──a call──► busy ──answer──► idle ──a call──► busy ...
                       └──its limit of processor time, its fault, or the deadline──► ended

A call takes an idle worker or starts one, so there are as many as callers at once. NUM_IDLE stay.
"""

import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from threading import Lock, Timer
from typing import IO

from adapters.image_process.wire import Ask, BrokenReply, Found, WorkerReply, read_reply, write
from adapters.image_process.worker import DECODER_FAILED, PDF_FAILED, PDF_TOO_COSTLY, TOO_COSTLY
from application.installation import child_environment
from application.ports.vision import ImageProcessor, ProcessedImage
from domain.errors import FileUnreadable, InvalidRequest, ModelLoadFailed, ServerUnavailable
from domain.models.capability import Capability
from domain.models.model_card import ModelSource
from domain.request.file import File
from domain.request.media import Image

NUM_IDLE = 2

PDF = -1
"""The number of no processor."""

DEADLINE_S = 180.0
"""The longest wait for a worker that does not answer: one that hangs without taking processor time."""

PASSED = frozenset({"PATH", "PYTHONPATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH"})
"""The variables that a worker inherits: no key is among them."""

ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one file. `cpu_s`: seconds of a processor. `memory_bytes`: of a worker's address space.
    `deadline_s`: for an answer."""

    cpu_s: int = 10
    memory_bytes: int = 3 << 30
    deadline_s: float = DEADLINE_S


_CRASHES = (-signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, -signal.SIGFPE, -signal.SIGILL)
_IMAGE_FAULTS = {-signal.SIGXCPU: TOO_COSTLY} | dict.fromkeys(_CRASHES, DECODER_FAILED)
_PDF_FAULTS = {-signal.SIGXCPU: PDF_TOO_COSTLY} | dict.fromkeys(_CRASHES, PDF_FAILED)
"""Why a file is refused that ended its worker, by the status."""

STOPPING = "the server is stopping"


class ImageWorkers:
    """Any thread; calls block."""

    def __init__(self, module: str, limits: Limits | None = None) -> None:
        """`module`: run as `python -m`, with the limits of processor time and memory."""
        self.limits = limits or Limits()
        arguments = (str(self.limits.cpu_s), str(self.limits.memory_bytes))
        self._command = (sys.executable, "-P", "-m", module, *arguments)  # -P: nothing of the current folder
        self._lock = Lock()
        self._idle: list[subprocess.Popen[bytes]] = []
        self._busy: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False
        self._numbers = count()

    @property
    def pids(self) -> tuple[int, ...]:
        """The process ids of the workers."""
        with self._lock:
            return tuple([process.pid for process in (*self._idle, *self._busy)])

    def load(self, source: ModelSource) -> ImageProcessor | None:
        if Capability.SEE not in source.use.capabilities:
            return None
        number = next(self._numbers)
        answer = self.ask(Ask(number, source)).answer
        if answer.why:
            raise ModelLoadFailed(answer.why)
        return _Processor(self, number, source, answer.placeholder) if answer.placeholder else None

    def pages(self, file: File) -> tuple[str, ...]:
        answer = self.ask(Ask(PDF, None, file.data)).answer
        if answer.is_refused:
            raise FileUnreadable(f"{file.field}: {answer.why}", param=file.field)
        if answer.why:
            raise ServerUnavailable(f"files cannot be read: {answer.why}")
        return answer.pages

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for process in self._busy:
                process.kill()  # its call ends it
            idle, self._idle = self._idle, []
        for process in idle:
            _end(process)

    def ask(self, ask: Ask) -> Found:
        """Returns a worker's answer; a refusal where the file ended the worker. Raises ServerUnavailable."""
        process, has_answered = self._taken(), False
        deadline = Timer(self.limits.deadline_s, process.kill)
        deadline.daemon = True
        deadline.start()
        try:
            write(_pipe(process.stdin), ask)
            found = read_reply(_pipe(process.stdout))
            has_answered = True
            return found
        except (OSError, BrokenReply) as error:
            process.kill()
            return Found(self._refusal(process.wait(), ask, error), None)
        finally:
            deadline.cancel()
            self._give_back(process, is_sound=has_answered)

    def _refusal(self, status: int, ask: Ask, error: Exception) -> WorkerReply:
        """Returns why a file ended its worker. Raises ServerUnavailable where it is not the cause."""
        if self._is_closed:
            raise ServerUnavailable(STOPPING)
        faults = _IMAGE_FAULTS if ask.source is not None else _PDF_FAULTS
        if ask.data is not None and status in faults:
            return WorkerReply(faults[status], is_refused=True)
        how = f"signal {-status}" if status < 0 else f"status {status}"
        raise ServerUnavailable(f"the process that reads images and files ended with {how}: try again later") from error

    def _taken(self) -> "subprocess.Popen[bytes]":
        with self._lock:
            if self._is_closed:
                raise ServerUnavailable(STOPPING)
            while self._idle:
                if (process := self._idle.pop()).poll() is None:
                    self._busy.add(process)
                    return process
                _end(process)
            process = _started(self._command)
            self._busy.add(process)
            return process

    def _give_back(self, process: "subprocess.Popen[bytes]", *, is_sound: bool) -> None:
        with self._lock:
            self._busy.discard(process)
            is_kept = is_sound and not self._is_closed and len(self._idle) < NUM_IDLE
            if is_kept:
                self._idle.append(process)
        if not is_kept:
            _end(process)


@dataclass(frozen=True, slots=True)
class _Processor:
    """An ImageProcessor of one model. `number`: by which a worker keeps it."""

    workers: ImageWorkers
    number: int
    source: ModelSource
    placeholder: str

    def process(self, image: Image) -> ProcessedImage:
        found = self.workers.ask(Ask(self.number, self.source, image.data, image.detail))
        if found.image is not None:
            return found.image
        if not found.answer.is_refused:
            raise ServerUnavailable(f"images cannot be processed: {found.answer.why}")
        raise InvalidRequest(f"{image.field or 'image'}: {found.answer.why}", param=image.field or None)


def _started(command: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Starts a worker in a session of its own, which no signal of a terminal reaches. Raises ServerUnavailable."""
    environment = {name: value for name, value in child_environment().items() if name in PASSED} | ALONE
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, start_new_session=True)
    except OSError as error:
        why = error.strerror or str(error)
        raise ServerUnavailable(f"the process that reads images and files cannot be started: {why}") from error


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends and reaps a worker that no call uses. A killed one ends at once: it waits for no device."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):  # what was not written is lost
            _pipe(pipe).close()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
