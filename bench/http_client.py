"""A lean streaming client for OpenAI-compatible servers: when each token arrived, on the machine-wide monotonic clock.

Run as a process of its own (`python -m bench.http_client`), so that it shares no interpreter with the server it
measures: reads a JSON list of requests from standard input, each started at its own offset, writes a JSON list of
timelines.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from typing import Any
from urllib.parse import urlsplit

from interfaces.cli.bench.timeline import Timeline


async def stream(base_url: str, path: str, body: dict[str, Any], cancel_after_s: float | None = None) -> Timeline:
    """POST `body` and read the server-sent events to their end, or leave after `cancel_after_s`."""
    url = urlsplit(base_url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    payload = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: application/json\r\nConnection: close\r\n"
    timeline = Timeline(time.monotonic())
    writer.write(head.encode() + f"Content-Length: {len(payload)}\r\n\r\n".encode() + payload)
    try:
        async with asyncio.timeout(cancel_after_s):
            await writer.drain()
            await _read(reader, timeline)
    except TimeoutError:
        timeline.error = "left"
    finally:
        timeline.end_s = time.monotonic()
        writer.close()
    return timeline


async def _read(reader: asyncio.StreamReader, timeline: Timeline) -> None:
    timeline.status = int((await reader.readline()).split()[1])
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        timeline.headers[name.lower()] = value.strip()
    if timeline.status != 200:
        timeline.error = (await reader.read()).decode(errors="replace")
        return
    while line := await reader.readline():
        timeline.read_line(line, time.monotonic())


async def run_all(base_url: str, requests: list[dict[str, Any]]) -> list[Timeline]:
    """Each request: {"path", "body", "at_s" (offset), "cancel_after_s"}."""

    async def one(request: dict[str, Any]) -> Timeline:
        await asyncio.sleep(request.get("at_s", 0.0))
        return await stream(base_url, request["path"], request["body"], request.get("cancel_after_s"))

    return list(await asyncio.gather(*(one(request) for request in requests)))


def measure(base_url: str, requests: list[dict[str, Any]]) -> list[Timeline]:
    """Run the requests from a process of its own."""
    import subprocess

    done = subprocess.run(
        [sys.executable, "-m", "bench.http_client", base_url],
        input=json.dumps(requests).encode(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=1200,
    )
    return [Timeline(**timeline) for timeline in json.loads(done.stdout)]


if __name__ == "__main__":
    timelines = asyncio.run(run_all(sys.argv[1], json.load(sys.stdin)))
    json.dump([asdict(timeline) for timeline in timelines], sys.stdout)
