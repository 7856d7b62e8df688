"""A running Cairn server as commands talk to it: one JSON request, one JSON answer, and a plain word when it fails."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar, cast
from urllib.parse import urlsplit

from application.settings import ServerSettings, is_loopback
from domain.shown import shown
from interfaces.cli.client.foreign_answer import content_of, decoded
from interfaces.cli.terminal.failure import FAILED, USAGE, fail

if TYPE_CHECKING:
    import httpx

_Body = TypeVar("_Body")

CONNECT_TIMEOUT_S = 5.0
"""Answers may take as long as loading a model or computing a prompt does."""

MAX_REFUSAL_CHARS = 2000
"""Of what a server says when it refuses."""

_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class NoAnswer(Exception):
    """There is none, or a refusal. `exit_status`: of a command that needs one. `http_status`: of a refusal."""

    def __init__(self, message: str, exit_status: int = FAILED, http_status: int | None = None) -> None:
        super().__init__(message)
        self.exit_status = exit_status
        self.http_status = http_status


@contextmanager
def needed() -> Generator[None]:
    """Ends the command with what a NoAnswer says."""
    try:
        yield
    except NoAnswer as why:
        fail(str(why), why.exit_status)


@dataclass(frozen=True, slots=True)
class RunningServer:
    """`url` without a path."""

    url: str
    api_key: str | None = None

    def understood(self, answer: dict[str, object], body: type[_Body]) -> _Body:
        """An answer as what this version of Cairn would have answered. Raises NoAnswer."""
        from interfaces.http.native.bodies import body_of

        try:
            return body_of(answer, body)
        except ValueError as error:
            message = f"what answers at {self.url} is not this version of Cairn: {shown(str(error))}"
            raise NoAnswer(message) from None

    async def ask(self, path: str, body: bytes | None = None, timeout_s: float | None = None) -> dict[str, object]:
        """The answer to a JSON body, or to GET. `timeout_s`: most to wait; None: as long as it takes. Raises
        NoAnswer."""
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
                asyncio.timeout(timeout_s),  # of it all: a byte now and then is no answer
                httpx.AsyncClient(timeout=timeout, trust_env=not is_local) as client,
                client.stream(method, self.url + path, content=body, headers=headers) as response,
            ):
                return await self._answer(response)
        except TimeoutError:
            raise NoAnswer(f"{self.url} did not answer within {timeout_s:g} s") from None
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, ValueError) as error:
            raise NoAnswer(f"{self.url} is no address to ask: {shown(str(error))}", USAGE) from None
        except (httpx.ConnectError, httpx.ConnectTimeout):
            message = f"no server answers at {self.url}; start one with cairn serve, or name another with --url"
            raise NoAnswer(message) from None
        except httpx.HTTPError as error:
            raise NoAnswer(f"asking {self.url} failed: {shown(str(error)) or type(error).__name__}") from None

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
                said = shown(message, MAX_REFUSAL_CHARS)
                return f"{said}; give it in a file with --api-key-file" if status == 401 else said
            case _:
                return f"{self.url} answered with status {status} and not as Cairn does"


def running_server(url: str | None, api_key: str | None, settings: ServerSettings) -> RunningServer:
    """What was asked for, else the server that these settings describe."""
    if url is None:
        host = _WILDCARDS.get(settings.host, settings.host)
        url = f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"
    return RunningServer(url.rstrip("/").removesuffix("/v1").rstrip("/"), api_key or settings.api_key)
