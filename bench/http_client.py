"""A load generator in a process of its own, so that it shares no interpreter with the server that it measures: streamed
completions of any OpenAI-compatible server, and when each token arrived, on the machine-wide monotonic clock.

`python -m bench.http_client URL` reads a JSON list of requests from standard input, starts each at its own offset, and
writes a JSON list of timelines.
"""

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias, cast

import httpx

Message: TypeAlias = dict[str, str]

CONNECT_TIMEOUT_S = 5.0

MIN_SPAN_S = 0.005
"""A client that reads late finds many chunks at once: a shorter span measures the client, not the server."""

LEFT = "left"
"""The error of a timeline whose client left before the end."""

WORDS = "amber birch cedar delta ember fjord grove heath inlet juniper knoll larch".split()  # noqa: SIM905
_TEXTS = ("content", "reasoning_content", "reasoning", "text")


def words(seed: int, count: int) -> str:
    """Returns a text of `count` words that differs for every seed."""
    return " ".join(f"{WORDS[(seed + i) % 12]} {seed * 7919 + i * 31}" for i in range(count))


def user(text: str) -> Message:
    return {"role": "user", "content": text}


@dataclass
class Timeline:
    """A streamed answer. `token_s`: the arrival of each chunk that holds text; `usage` and `headers` as the server gave
    them. `error`: why there is no whole answer, LEFT for a client that left; empty for a whole one."""

    sent_s: float
    status: int = 0
    first_token_s: float = 0.0
    end_s: float = 0.0
    token_s: list[float] = field(default_factory=list[float])
    text: str = ""
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    headers: dict[str, str] = field(default_factory=dict[str, str])
    error: str = ""

    @property
    def ttft_s(self) -> float:
        return self.first_token_s - self.sent_s

    @property
    def gaps_s(self) -> list[float]:
        """Times between chunks: inter-token latencies where a chunk is a token."""
        return [later - earlier for earlier, later in zip(self.token_s, self.token_s[1:], strict=False)]

    @property
    def num_prompt(self) -> int | None:
        """Prompt tokens by the server's count; None if it gave none."""
        return _count(self.usage.get("prompt_tokens"))

    @property
    def num_output(self) -> int | None:
        """Output tokens by the server's count; None if it gave none."""
        return _count(self.usage.get("completion_tokens"))

    @property
    def num_cached(self) -> int | None:
        """Prompt tokens that the server reports as reused; None if it reports nothing, which is not zero."""
        details = self.usage.get("prompt_tokens_details")
        return _count(cast("dict[str, object]", details).get("cached_tokens")) if isinstance(details, dict) else None

    def read_line(self, line: bytes, now_s: float) -> None:
        """Takes a line of the stream. Raises ValueError for data that is not JSON."""
        data = line[5:].strip() if line.startswith(b"data:") else b""
        if not data or data == b"[DONE]":
            return
        chunk: Any = json.loads(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"an event is not an object: {data[:80]!r}")
        event = cast("dict[str, Any]", chunk)
        if event.get("error"):
            self.error = json.dumps(event["error"])
            return
        if isinstance(usage := event.get("usage"), dict):
            self.usage = cast("dict[str, Any]", usage)
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or choice
            if text := "".join(delta.get(name) or "" for name in _TEXTS):
                self.first_token_s = self.first_token_s or now_s
                self.token_s.append(now_s)
                self.text += text


def decode_rate(timelines: Sequence[Timeline]) -> float | None:
    """Returns tokens a second over all streams while all of them run: from the last first token to the first end. A
    chunk may hold several tokens: the server's count is spread evenly over them. None: the streams hardly overlap, or
    came in one burst."""
    start = max(timeline.first_token_s for timeline in timelines)
    end = min(timeline.token_s[-1] for timeline in timelines)
    within = [sum(start < at <= end for at in timeline.token_s) for timeline in timelines]
    if min(within) < 2 or end - start < MIN_SPAN_S:
        return None
    tokens = 0.0
    for timeline, count in zip(timelines, within, strict=True):
        tokens += count * (timeline.num_output or len(timeline.token_s)) / len(timeline.token_s)
    return tokens / (end - start)


async def stream(client: httpx.AsyncClient, url: str, body: dict[str, Any], leave_after_s: float | None) -> Timeline:
    """Posts `body` and reads the answer's events to their end, or disconnects after `leave_after_s`: the timeline's
    error is LEFT then. A refusal is in its status and error."""
    timeline = Timeline(time.monotonic())
    try:
        async with asyncio.timeout(leave_after_s), client.stream("POST", url, json=body) as response:
            timeline.status = response.status_code
            timeline.headers = {name.lower(): value for name, value in response.headers.items()}
            if response.status_code != 200:
                timeline.error = (await response.aread()).decode(errors="replace")
                return timeline
            rest = b""
            async for data in response.aiter_bytes():
                now_s = time.monotonic()
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    timeline.read_line(line, now_s)
            timeline.read_line(rest, time.monotonic())
    except TimeoutError:
        timeline.error = LEFT
    finally:
        timeline.end_s = time.monotonic()
    return timeline


def new_client() -> httpx.AsyncClient:
    """A client without a bound on connections, and without the proxies of the environment."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    return httpx.AsyncClient(limits=limits, timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S), trust_env=False)


async def run_all(base_url: str, requests: list[dict[str, Any]]) -> list[Timeline]:
    """Each request: {"path", "body", "at_s" (offset), "cancel_after_s"}."""

    async with new_client() as client:
        await client.get(base_url + "/health")  # the first request of a process imports and connects

        async def one(request: dict[str, Any]) -> Timeline:
            await asyncio.sleep(request.get("at_s", 0.0))
            return await stream(client, base_url + request["path"], request["body"], request.get("cancel_after_s"))

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


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None


if __name__ == "__main__":
    timelines = asyncio.run(run_all(sys.argv[1], json.load(sys.stdin)))
    json.dump([asdict(timeline) for timeline in timelines], sys.stdout)
