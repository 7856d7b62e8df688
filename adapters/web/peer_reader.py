"""The other servers of a fleet, asked over HTTP without a key, a cookie, a proxy or a redirect.

An answer is bounded in time and bytes, and what it lacks or has in another form is unknown.
"""

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

from application.ports.peers import PeerState

if TYPE_CHECKING:
    import httpx

TIMEOUT_S = 3.0
MAX_BYTES = 256 << 10
MAX_CHARS = 200

WINDOW_S = 900
"""The window of the reuse that is shown, one of those of /admin/api/overview."""


async def read_peer(url: str) -> PeerState:
    """A ReadPeer."""
    import httpx  # most servers have no peers

    try:
        async with asyncio.timeout(TIMEOUT_S), httpx.AsyncClient(trust_env=False) as client:
            health = await _json(client, f"{url}/health/ready", 200, 503)
            overview = await _json(client, f"{url}/admin/api/overview", 200)
    except TimeoutError:
        return PeerState(url, problem=f"no answer within {TIMEOUT_S:.0f} s")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return PeerState(url, problem=f"no answer ({type(error).__name__})")
    if (status := _text(health, "status")) not in ("ready", "not ready"):
        return PeerState(url, problem="its /health/ready is not that of Cairn")
    return PeerState(
        url,
        status == "ready",
        _text(health, "problem") or "",
        _count(health, "waiting"),
        _count(health, "running"),
        _text(overview, "version"),
        _reuse(overview),
    )


async def _json(client: "httpx.AsyncClient", url: str, *statuses: int) -> dict[str, Any]:
    """The object of an answer with one of these statuses; empty for any other answer."""
    data = bytearray()
    async with client.stream("GET", url, headers={"Accept-Encoding": "identity"}) as response:
        if response.status_code not in statuses:
            return {}
        async for piece in response.aiter_raw():
            data += piece
            if len(data) > MAX_BYTES:
                return {}
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _text(body: dict[str, Any], name: str) -> str | None:
    value = body.get(name)
    return value[:MAX_CHARS] if isinstance(value, str) else None


def _count(body: dict[str, Any], name: str) -> int | None:
    value = body.get(name)
    return value if isinstance(value, int) and 0 <= value < 2**53 else None


def _reuse(overview: dict[str, Any]) -> float | None:
    try:
        (rates,) = [one["hit_rate"] for one in overview["figures"]["reuse"] if one["window_s"] == WINDOW_S]
        return min(1.0, max(0.0, float(sum(rates.values()))))
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
