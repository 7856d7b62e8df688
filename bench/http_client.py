"""A lean streaming client for OpenAI-compatible servers: when each token arrived, on the machine-wide monotonic clock.

Run as a process of its own (`python -m bench.http_client`), so that it shares no interpreter with the server it
measures: reads a JSON list of requests from standard input, each started at its own offset, writes a JSON list of
timelines.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import urlsplit


@dataclass
class Timeline:
    """Monotonic seconds. `token_s`: arrival of each content chunk; `usage` and `headers` as the server gave them."""

    sent_s: float
    status: int = 0
    first_token_s: float = 0.0
    end_s: float = 0.0
    token_s: list[float] = field(default_factory=list)
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.sent_s

    @property
    def longest_gap_s(self) -> float:
        return max((b - a for a, b in zip(self.token_s, self.token_s[1:], strict=False)), default=0.0)


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
        if line.startswith(b"data: "):
            _take(line[6:].strip(), timeline)


def _take(data: bytes, timeline: Timeline) -> None:
    if data == b"[DONE]":
        return
    chunk = json.loads(data)
    if "error" in chunk:
        timeline.error = json.dumps(chunk["error"])
        return
    timeline.usage = chunk.get("usage") or timeline.usage
    for choice in chunk.get("choices", ()):
        delta = choice.get("delta", choice)
        text = delta.get("content") or delta.get("text") or delta.get("reasoning") or ""
        if text:
            now = time.monotonic()
            timeline.first_token_s = timeline.first_token_s or now
            timeline.token_s.append(now)
            timeline.text += text


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
