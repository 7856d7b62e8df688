"""One conversation with a tool server, over any transport: which era it speaks, its tools, and calls.

    2026-07-28                                   2025-11-25 and before
    server/discover -> versions                  an error, no answer, or none of these versions -> initialize,
    every request names version and client       notifications/initialized; the server's version counts from then on

No capabilities are declared, so a server has nothing to ask for; what it asks all the same is refused by the transport.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from domain.half_pairs import without_halves

MODERN = "2026-07-28"
HANDSHAKE = "2025-11-25"

PROBE_TIMEOUT_S = 5.0
"""A server of the older era may leave a request unanswered that comes before `initialize`."""

MAX_PAGES = 32
"""Pages of a tool list."""

_META = "io.modelcontextprotocol/"
_CLIENT = {"name": "cairn", "version": "1"}


def decoded(data: bytes) -> Any:
    """The JSON of a message, whose texts can be written as UTF-8: halves of surrogate pairs become marks. Raises
    ValueError, and RecursionError."""
    return json.loads(without_halves(data).decode())


def object_of(value: Any) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def list_of(value: Any) -> Sequence[Any]:
    """A JSON array; an empty one for anything else."""
    return cast(Sequence[Any], value) if isinstance(value, list) else ()


class TransportLost(Exception):
    """The connection has failed: nothing more is answered. The text says why, and holds nothing of the server's."""


class RpcFailed(Exception):
    """The server answered with a JSON-RPC error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Transport(Protocol):
    """Carries JSON-RPC messages. Event loop only. Requests may be answered in any order."""

    async def request(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
        """Sends a request and returns its `result`. Raises RpcFailed and TransportLost. A caller that is cancelled
        leaves the request, and tells the server where the transport can. `headers`: those that HTTP carries."""
        ...

    async def notify(self, message: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        """Sends a message without an answer. Raises TransportLost."""
        ...

    async def close(self) -> None:
        """Ends the connection, bounded in time. Idempotent."""
        ...


class Session:
    """An open conversation. `protocol`: the version that was agreed on; empty before `open`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._number = 0
        self.protocol = ""

    async def open(self) -> None:
        """Finds out the era. Raises RpcFailed and TransportLost."""
        has_answered = False
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                if await self._is_modern():
                    return
                has_answered = True
        except RpcFailed:
            has_answered = True
        except TimeoutError:
            pass
        hello = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
        try:
            found = await self._send("initialize", hello, "")
        except RpcFailed:
            # A modern server that was slow to start knows no handshake.
            if has_answered or not await self._is_modern():
                raise
            return
        version = object_of(found).get("protocolVersion")
        if not isinstance(version, str) or not version.isascii() or len(version) > 32:
            raise TransportLost("it names no version of the protocol")
        self.protocol = version
        await self._transport.notify({"jsonrpc": "2.0", "method": "notifications/initialized"}, self._headers({}))

    async def _is_modern(self) -> bool:
        found = await self._send("server/discover", {}, MODERN)
        if MODERN in list_of(object_of(found).get("supportedVersions")):
            self.protocol = MODERN
        return self.protocol == MODERN

    async def tools(self) -> list[Any]:
        """The whole list, as the server gives it, in MAX_PAGES pages at most. Raises as `request`."""
        found, cursor = list[Any](), None
        for _ in range(MAX_PAGES):
            page = object_of(await self.request("tools/list", {} if cursor is None else {"cursor": cursor}))
            if "tools" not in page:
                raise TransportLost("its list of tools is none")
            found += list_of(page["tools"])
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str):
                return found
        raise TransportLost(f"its list of tools has more than {MAX_PAGES} pages")

    async def request(self, method: str, params: Mapping[str, Any]) -> Any:
        """The result of a request. Raises RpcFailed and TransportLost."""
        return await self._send(method, params, self.protocol)

    async def close(self) -> None:
        await self._transport.close()

    async def _send(self, method: str, params: Mapping[str, Any], version: str) -> Any:
        self._number += 1
        if version == MODERN:
            meta = {"protocolVersion": MODERN, "clientInfo": _CLIENT, "clientCapabilities": {}}
            params = {**params, "_meta": {f"{_META}{name}": value for name, value in meta.items()}}
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        return await self._transport.request(message, self._headers(message, version))

    def _headers(self, message: Mapping[str, Any], version: str | None = None) -> dict[str, str]:
        version = self.protocol if version is None else version
        headers = {"mcp-protocol-version": version} if version else {}
        if version == MODERN and message:
            headers["mcp-method"] = message["method"]
            if message["method"] == "tools/call":
                headers["mcp-name"] = message["params"]["name"]
        return headers


def result_of(answer: Any) -> Any:
    """The result of a JSON-RPC response. Raises RpcFailed for an error, and TransportLost for what is neither."""
    message = object_of(answer)
    if isinstance(message.get("error"), dict):
        error = object_of(message["error"])
        code, text = error.get("code"), error.get("message")
        raise RpcFailed(code if isinstance(code, int) else 0, text if isinstance(text, str) else "no message")
    if "result" in message:
        return message["result"]
    raise TransportLost("it answered with something else than JSON-RPC")
