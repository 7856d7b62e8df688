"""A client of any OpenAI-compatible server: streamed chat completions, and the timeline of each as the client saw it.
It uses only features that such servers share. `ignore_eos` makes answers run to their length; a server that refuses the
field is asked without it. Times are of the monotonic clock, in seconds.
"""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from domain.printable import printable
from interfaces.cli.client.running_server import content_of, decoded

if TYPE_CHECKING:
    import httpx

Message: TypeAlias = dict[str, str]

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 600.0

MAX_LINE_BYTES = 2**20
MAX_BYTES_A_TOKEN = 4096
"""The bound on a stream, framing and keep-alives included."""

MAX_ERROR_CHARS = 300

MIN_SPAN_S = 0.005
"""A client that reads late finds many chunks at once: a shorter span measures the client, not the server."""

LEFT = "left"
"""The error of a timeline whose client left before the end."""

_TEXTS = ("content", "reasoning_content", "reasoning", "text")
_REFUSED = (400, 422)


class BenchFailed(Exception):
    """The server did not fulfil a request; the message quotes its answer."""


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
        chunk: Any = decoded(data)
        if not isinstance(chunk, dict):
            raise ValueError(f"an event is not an object: {data[:80]!r}")
        event = cast("dict[str, Any]", chunk)
        if event.get("error"):
            self.error = printable(json.dumps(event["error"]), MAX_ERROR_CHARS)
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


class Target:
    """A server under test. `url` without a path. `ignores_eos`: False once the server refused the field."""

    def __init__(self, client: "httpx.AsyncClient", url: str, model: str) -> None:
        self._client = client
        self.url = url
        self.model = model
        self.ignores_eos = True

    async def choose_model(self) -> None:
        """Chooses the server's only model if none is named. Raises BenchFailed."""
        if self.model:
            return
        models = await self._models()
        if not models:
            raise BenchFailed("the server lists no model; name one with --model")
        if len(models) > 1:
            raise BenchFailed(f"name one of the server's models with --model: {', '.join(map(printable, models[:20]))}")
        self.model = models[0]

    async def ask(self, messages: Sequence[Message], max_tokens: int, leave_after_s: float | None = None) -> Timeline:
        """Returns the answer to `messages`, or the part of it read within `leave_after_s`. Raises BenchFailed."""
        timeline = await self._stream(messages, max_tokens, leave_after_s)
        if timeline.status in _REFUSED and self.ignores_eos and "ignore_eos" in timeline.error:
            self.ignores_eos = False
            timeline = await self._stream(messages, max_tokens, leave_after_s)
        if timeline.error == LEFT and leave_after_s is None:
            raise BenchFailed(f"{self.url} did not complete an answer within {REQUEST_TIMEOUT_S:g} s")
        if timeline.error and timeline.error != LEFT:
            raise BenchFailed(timeline.error)
        if not timeline.token_s and timeline.error != LEFT:
            raise BenchFailed(f"{self.url} answered without any text")
        return timeline

    async def ask_together(self, prompts: Sequence[Sequence[Message]], max_tokens: int) -> list[Timeline]:
        """Returns one answer for each prompt, all requested at once. Raises the first failure after all have ended."""
        asking = [self.ask(messages, max_tokens) for messages in prompts]
        timelines: list[Timeline] = []
        for answer in await asyncio.gather(*asking, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer
            timelines.append(answer)
        return timelines

    async def _models(self) -> list[str]:
        import httpx

        path = f"{self.url}/v1/models"
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S), self._client.stream("GET", path) as response:
                content = await content_of(response)
        except (TimeoutError, httpx.HTTPError) as error:
            raise BenchFailed(_unreachable(path, error)) from None
        except ValueError as error:
            raise BenchFailed(f"{path}: {error}") from None
        try:
            if response.is_success:
                return [str(model["id"]) for model in decoded(content)["data"]]
        except (ValueError, TypeError, KeyError):
            pass
        raise BenchFailed(_refusal(path, response.status_code, content))

    async def _stream(self, messages: Sequence[Message], max_tokens: int, leave_after_s: float | None) -> Timeline:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if self.ignores_eos:
            body["ignore_eos"] = True
        limit_s = REQUEST_TIMEOUT_S if leave_after_s is None else leave_after_s
        return await stream(self._client, f"{self.url}/v1/chat/completions", body, limit_s)


async def stream(client: "httpx.AsyncClient", url: str, body: dict[str, Any], leave_after_s: float | None) -> Timeline:
    """Posts `body` and reads the answer's events to their end, or disconnects after `leave_after_s`: the timeline's
    error is LEFT then. A refusal is in its status and error. Raises BenchFailed for a server that cannot be reached, or
    does not stream as OpenAI's do."""
    import httpx

    timeline = Timeline(time.monotonic())
    try:
        async with asyncio.timeout(leave_after_s), client.stream("POST", url, json=body) as response:
            timeline.status = response.status_code
            timeline.headers = {name.lower(): value for name, value in response.headers.items()}
            if response.status_code != 200:
                timeline.error = _refusal(url, response.status_code, await content_of(response))
                return timeline
            await _read(response, timeline, MAX_LINE_BYTES + MAX_BYTES_A_TOKEN * int(body.get("max_tokens", 0)))
    except TimeoutError:
        timeline.error = LEFT
    except httpx.HTTPError as error:
        raise BenchFailed(_unreachable(url, error)) from None
    except (ValueError, AttributeError, TypeError) as error:
        raise BenchFailed(f"{url} does not stream as OpenAI does: {printable(str(error))}") from None
    finally:
        timeline.end_s = time.monotonic()
    return timeline


async def _read(response: "httpx.Response", timeline: Timeline, max_bytes: int) -> None:
    """Reads the stream to its end. Raises ValueError for malformed events, and for a stream beyond `max_bytes`."""
    rest, num_bytes = b"", 0
    async for data in response.aiter_bytes():
        now_s = time.monotonic()
        num_bytes += len(data)
        if num_bytes > max_bytes or len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"the stream has not ended after {num_bytes} bytes")
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            timeline.read_line(line, now_s)
    timeline.read_line(rest, time.monotonic())


def new_client(api_key: str | None, *, is_local: bool) -> "httpx.AsyncClient":
    """A client without a bound on connections. `is_local`: proxies of the environment are not used."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout, trust_env=not is_local)


def _refusal(path: str, status: int, content: bytes) -> str:
    """Returns the server's error message on one line, without control codes."""
    text = content.decode(errors="replace")
    try:
        error = cast("dict[str, Any]", decoded(content))["error"]
        text = str(cast("dict[str, Any]", error)["message"] if isinstance(error, dict) else error)
    except (ValueError, TypeError, KeyError):
        pass
    hint = "; give the key in a file with --api-key-file" if status == 401 else ""
    return f"{path} answered with status {status}: {printable(' '.join(text.split()), MAX_ERROR_CHARS)}{hint}"


def _unreachable(path: str, error: Exception) -> str:
    return f"asking {path} failed: {printable(str(error)) or type(error).__name__}"


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and value >= 0 else None
