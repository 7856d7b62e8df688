"""A tool server over streamable HTTP: each message is a POST, answered with JSON or with a stream of events.

Redirects are not followed, and nothing is sent but what the configuration names. A server of the older era gives a
session, which later messages name; where it has forgotten it, it answers 404.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

from adapters.mcp.session import TransportLost, decoded, object_of, result_of

CONNECT_S = 10.0
_ACCEPT = "application/json, text/event-stream"
_SESSION = "mcp-session-id"


class HttpTransport:
    """A Transport to a URL. `max_bytes`: of one answer. `address`: where the URL's host is looked for, which a
    certificate still has to prove; empty for wherever its name leads."""

    def __init__(self, url: str, headers: Mapping[str, str], max_bytes: int, address: str = "") -> None:
        self._url, self._headers, self._max_bytes = httpx.URL(url), dict(headers), max_bytes
        self._extensions: dict[str, Any] = {}
        if address:
            host = self._url.host
            self._headers["host"], self._extensions["sni_hostname"] = host, host
            self._url = self._url.copy_with(host=address)
        timeout = httpx.Timeout(None, connect=CONNECT_S)  # a call has its own
        self._client = httpx.AsyncClient(timeout=timeout, follow_redirects=False, trust_env=False)
        self._session = ""

    async def request(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        try:
            async with self._client.stream("POST", self._url, **self._of(message, headers)) as response:
                if message["method"] == "initialize":
                    self._session = response.headers.get(_SESSION, "")
                kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                if kind == "text/event-stream" and response.status_code == 200:
                    async for event in _events(self._bounded(response)):
                        answer = object_of(event)
                        if answer.get("id") == message["id"] and "method" not in answer:
                            return result_of(answer)
                    raise TransportLost("its stream ended before the answer")
                body = b"".join([piece async for piece in self._bounded(response)])
                if kind == "application/json":
                    return result_of(_decoded(body))
                raise TransportLost(f"it answered {response.status_code}")
        except httpx.HTTPError as error:
            raise TransportLost(f"it did not answer ({type(error).__name__})") from None

    async def notify(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        try:
            async with self._client.stream("POST", self._url, **self._of(message, headers)) as response:
                if response.status_code >= 400:
                    raise TransportLost(f"it answered {response.status_code}")
        except httpx.HTTPError as error:
            raise TransportLost(f"it did not answer ({type(error).__name__})") from None

    async def close(self) -> None:
        await self._client.aclose()

    def _of(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, Any]:
        session = {_SESSION: self._session} if self._session and message["method"] != "initialize" else {}
        sent = {"accept": _ACCEPT, "content-type": "application/json", **self._headers, **headers, **session}
        return {"content": json.dumps(message).encode(), "headers": sent, "extensions": self._extensions}

    async def _bounded(self, response: httpx.Response) -> AsyncIterator[bytes]:
        left = self._max_bytes
        async for piece in response.aiter_bytes():
            left -= len(piece)
            if left < 0:
                raise TransportLost(f"it sent an answer of more than {self._max_bytes} bytes")
            yield piece


async def _events(pieces: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """The JSON of each event's data."""
    rest, data = b"", list[bytes]()
    async for piece in pieces:
        *lines, rest = (rest + piece).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
            elif not line and data:
                yield _decoded(b"\n".join(data))
                data = []
        await asyncio.sleep(0)


def _decoded(body: bytes) -> Any:
    try:
        return decoded(body)
    except (ValueError, RecursionError):
        raise TransportLost("it answered with something else than JSON") from None
