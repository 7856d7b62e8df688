"""A tool server as a child process: one JSON message a line, on its standard input and output.

The process has a group of its own, and of Cairn's environment only what it needs to run, so no key of Cairn's reaches
it. It ends with Cairn: its input is closed, and Linux kills it, since it asks for that before the server's program
takes its place. Its standard error is read, so that it cannot block there, and the last lines are kept.
"""

import asyncio
import json
import os
import signal
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from adapters.mcp.session import TransportLost, decoded, object_of, result_of
from domain.printable import printable

INHERITED = ("HOME", "LOGNAME", "PATH", "SHELL", "TERM", "USER")
MAX_LOG_LINES, MAX_LOG_CHARS = 50, 400
END_S = 2.0
"""The time that a server has to end by itself, and again after SIGTERM."""

_METHOD_NOT_FOUND = -32601
_GONE = ProcessLookupError, PermissionError  # macOS refuses to signal a group that has ended and was not reaped

_LAUNCH = (
    "import ctypes,os,sys\n"
    "ctypes.CDLL(None).prctl(1,9)\n"  # PR_SET_PDEATHSIG, SIGKILL
    "if os.getppid()!=int(sys.argv[1]): sys.exit(1)\n"
    "try: os.execvp(sys.argv[2],sys.argv[2:])\n"
    "except OSError as error: sys.exit(f'{sys.argv[2]}: {error.strerror}')"
)


class StdioTransport:
    """A Transport to a child process. `log`: the last lines of its standard error. `has_other_tools`: it has said that
    its list of tools changed since that was last read, and the reader of the list resets it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], max_line: int) -> None:
        """`environment`: added to what is INHERITED. `max_line`: bytes of a message; a longer one ends the
        connection."""
        self._command, self._environment, self._max_line = list(command), environment, max_line
        self._process: asyncio.subprocess.Process | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._lost = ""
        self.has_other_tools = False
        self.log: deque[str] = deque(maxlen=MAX_LOG_LINES)

    async def start(self) -> None:
        """Starts the process. Raises TransportLost."""
        command = self._command
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _LAUNCH, str(os.getpid()), *command]
        inherited = {name: os.environ[name] for name in INHERITED if name in os.environ}
        pipe = asyncio.subprocess.PIPE
        try:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                env={**inherited, **self._environment},
                start_new_session=True,
                limit=self._max_line,
            )
        except OSError as error:
            raise TransportLost(f"its program could not be started: {error.strerror}") from None
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_log())]

    async def request(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        number = message["id"]
        answer = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            await self._write(message)
            return result_of(await answer)
        except asyncio.CancelledError:
            params = {"requestId": number, "reason": "the client does not wait any longer"}
            with suppress(TransportLost):
                self._put({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
            raise
        finally:
            self._pending.pop(number, None)
            if answer.done() and not answer.cancelled():
                answer.exception()  # noted as seen, where the message was not even written

    async def notify(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        await self._write(message)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._fail("it was closed")
        if process.stdin is not None:
            process.stdin.close()
        for ending in (None, signal.SIGTERM, signal.SIGKILL):
            if ending is not None:
                with suppress(*_GONE):
                    os.killpg(process.pid, ending)
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S):
                    await process.wait()
                    break
        with suppress(*_GONE):  # what the server itself has started
            os.killpg(process.pid, signal.SIGKILL)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _write(self, message: Mapping[str, Any]) -> None:
        self._put(message)
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            await self._process.stdin.drain()
        except OSError:
            raise TransportLost(self._lost or "its process does not read") from None

    def _put(self, message: Mapping[str, Any]) -> None:
        if self._lost or self._process is None or self._process.stdin is None:
            raise TransportLost(self._lost or "it was closed")
        if self._process.stdin.is_closing():  # uvloop refuses what is written then with a RuntimeError
            raise TransportLost("its process does not read")
        self._process.stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def _read(self) -> None:
        """Reads messages until the output ends. Fails what is still open then."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        why = "its output ended"
        try:
            while line := await process.stdout.readline():
                if line.strip():
                    self._take(line)
        except ValueError:  # of the reader, for a line beyond its limit
            why = f"it sent a message of more than {self._max_line} bytes"
        except (OSError, RecursionError):
            why = "its output cannot be read"
        self._fail(why)
        with suppress(TimeoutError):
            async with asyncio.timeout(END_S):
                status = await process.wait()
                self._lost = f"its process ended with status {status}" if why == "its output ended" else why

    def _take(self, line: bytes) -> None:
        try:
            message = object_of(decoded(line))
        except ValueError:
            self._note(line)  # a stray line, as a program that prints writes it
            return
        number = message.get("id")
        if "method" in message:
            self.has_other_tools |= message["method"] == "notifications/tools/list_changed"
            if number is not None:
                refusal = {"code": _METHOD_NOT_FOUND, "message": "this client has no such method"}
                with suppress(TransportLost):
                    self._put({"jsonrpc": "2.0", "id": number, "error": refusal})
            return
        answer = self._pending.get(number) if isinstance(number, int) else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        stream = self._process.stderr
        while piece := await stream.read(4096):
            for line in piece.splitlines():
                self._note(line)

    def _note(self, line: bytes) -> None:
        self.log.append(printable(line[:MAX_LOG_CHARS].decode(errors="replace")))

    def _fail(self, why: str) -> None:
        self._lost = self._lost or why
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(TransportLost(self._lost))
