"""The commands' client of a running server: one JSON request, one JSON answer, and a message on failure.

The server may be another program: an answer is read up to a bound, decoded as JSON or refused, and its text is shown
only through `domain/printable.py`.
"""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

from application.settings import ServerSettings, is_loopback
from domain.byte_size import format_bytes
from domain.host_name import url_of
from domain.printable import printable
from interfaces.cli.terminal.ending import FAILED, USAGE, fail
from interfaces.cli.terminal.options import settings_with

if TYPE_CHECKING:
    import httpx

_Body = TypeVar("_Body")

CONNECT_TIMEOUT_S = 5.0
"""The bound on connecting only: an answer may take as long as loading a model or computing a prompt."""

MAX_REFUSAL_CHARS = 2000
"""The bound on the text of a refusal."""

MAX_ANSWER_BYTES = 16 * 2**20

MAX_DIGITS = 20
"""The bound on a whole number, its sign included: an integer of 64 bits has no more, and fits a float."""


_DATA = b"data: "


class NoAnswer(Exception):
    """The server did not answer, or refused. `exit_status`: of a command that needs the answer. `http_status`: of a
    refusal."""

    def __init__(self, message: str, exit_status: int = FAILED, http_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.http_status = http_status


class NotRunning(NoAnswer):
    """No server answers at the address."""


@contextmanager
def needed() -> Generator[None]:
    """Ends the command with the message of a NoAnswer."""
    try:
        yield
    except NoAnswer as why:
        fail(str(why), why.exit_status)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server and the key for it. `url`: without a path."""

    url: str
    api_key: str | None = None

    def understood(self, answer: Mapping[str, object], body: type[_Body]) -> _Body:
        """The answer decoded as `body`, a type of this version's API. Raises NoAnswer."""
        from interfaces.http.native.bodies import body_of

        try:
            return body_of(answer, body)
        except ValueError as error:
            message = f"the server at {self.url} is not this version of Cairn: {printable(str(error))}"
            raise NoAnswer(message) from None

    async def ask(self, path: str, body: bytes | None = None, timeout_s: float | None = None) -> dict[str, object]:
        """Returns the answer to a JSON body, or to GET. `timeout_s`: the longest wait; None: no limit. Raises
        NoAnswer."""
        async with self._asking(path, body, timeout_s) as response:
            return await self._answer(response)

    async def events(self, path: str, body: bytes) -> AsyncGenerator[Mapping[str, object]]:
        """The server-sent events of the answer to a JSON body, up to `[DONE]`. Raises NoAnswer, also for an error
        within the stream."""
        async with self._asking(path, body, None) as response:
            if not response.is_success:
                await self._answer(response)
            line = b""
            async for data in response.aiter_bytes():
                *lines, line = (line + data).split(b"\n")
                for one in lines:
                    if one.startswith(_DATA) and one.strip() != _DATA + b"[DONE]":
                        yield self._event(one.removeprefix(_DATA))
                if len(line) > MAX_ANSWER_BYTES:
                    raise NoAnswer(f"{self.url} sent an event longer than {format_bytes(MAX_ANSWER_BYTES)}")

    def _event(self, data: bytes) -> Mapping[str, object]:
        try:
            event = cast("Mapping[str, object]", decoded(data))
        except ValueError:
            event = {"error": None}
        if "error" in event:
            raise NoAnswer(self._refusal(200, event))
        return event

    @asynccontextmanager
    async def _asking(self, path: str, body: bytes | None, timeout_s: float | None) -> "AsyncGenerator[httpx.Response]":
        """The response to a request, its body not yet read. Failures, also in the block, are raised as NoAnswer."""
        import httpx

        headers = {b"Content-Type": b"application/json"}
        if self.api_key is not None:
            headers[b"Authorization"] = b"Bearer " + self.api_key.encode()
        method = "GET" if body is None else "POST"
        try:
            # No proxy stands between this machine and itself, whatever the environment says.
            is_local = is_loopback(urlsplit(self.url).hostname or "")
            timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
            async with (
                asyncio.timeout(timeout_s),  # for the whole answer
                httpx.AsyncClient(timeout=timeout, trust_env=not is_local) as client,
                client.stream(method, self.url + path, content=body, headers=headers) as response,
            ):
                yield response
        except TimeoutError:
            raise NoAnswer(f"{self.url} did not answer within {timeout_s:g} s") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError) as error:
            raise NoAnswer(f"{self.url} is not a valid server URL: {printable(str(error))}", USAGE) from None
        except (httpx.ConnectError, httpx.ConnectTimeout):
            message = f"no server answers at {self.url}; start one with cairn serve, or name another with --url"
            raise NotRunning(message) from None
        except httpx.HTTPError as error:
            raise NoAnswer(f"asking {self.url} failed: {printable(str(error)) or type(error).__name__}") from None

    async def _answer(self, response: "httpx.Response") -> dict[str, object]:
        try:
            answer: object = decoded(await content_of(response))
        except ValueError:
            answer = None
        if not response.is_success or not isinstance(answer, dict):
            raise NoAnswer(self._refusal(response.status_code, answer), http_status=response.status_code)
        return cast("dict[str, object]", answer)

    def _refusal(self, status: int, answer: object) -> str:
        match answer:
            case {"error": {"message": str(message)}}:
                said = printable(message, MAX_REFUSAL_CHARS)
                return f"{said}; give it in a file with --api-key-file" if status == 401 else said
            case _:
                return f"{self.url} answered with status {status} and not as Cairn does"


def configured_server(url: str | None, api_key: str | None) -> RunningServer:
    """The server at `url`, by default the one of the settings. Ends the command if they are invalid."""
    return running_server(url, api_key, settings_with({}).settings.server)


def running_server(url: str | None, api_key: str | None, settings: ServerSettings) -> RunningServer:
    """The server at `url`, by default the one that the settings describe."""
    url = url_of(settings.host, settings.port) if url is None else url
    return RunningServer(url.rstrip("/").removesuffix("/v1").rstrip("/"), api_key or settings.api_key)


async def content_of(response: "httpx.Response") -> bytes:
    """The body of a streamed response. Raises ValueError if it is longer than MAX_ANSWER_BYTES."""
    content = bytearray()
    async for data in response.aiter_bytes():
        content += data
        if len(content) > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is longer than {format_bytes(MAX_ANSWER_BYTES)}")
    return bytes(content)


def decoded(content: bytes) -> Any:
    """Decodes JSON whose numbers are finite. Raises ValueError, also for a value that is nested too deeply."""
    try:
        return json.loads(content, parse_int=_whole, parse_float=_finite, parse_constant=_refused)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None


def _whole(text: str) -> int:
    return int(text) if len(text) <= MAX_DIGITS else _refused(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _refused(text)


def _refused(text: str) -> NoReturn:
    raise ValueError(f"the answer has a number that is out of range: {text[:20]}")
