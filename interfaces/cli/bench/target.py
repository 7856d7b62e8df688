"""Any OpenAI-compatible server: streamed chat completions, one timeline each.

Only what such servers share is used. `ignore_eos` keeps answers going to their length where a server knows it; whoever
refuses it is asked without. Every request is bounded by what the allowance leaves of time.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from domain.shown import shown
from interfaces.cli.bench.allowance import Allowance, Spent
from interfaces.cli.bench.prompts import Message
from interfaces.cli.bench.timeline import Timeline
from interfaces.cli.client.foreign_answer import content_of, decoded

if TYPE_CHECKING:
    import httpx

CONNECT_TIMEOUT_S = 5.0
REST_S = 0.4
"""Between two requests: what a server still does after its answer must not slow the next one's."""

MAX_LINE_BYTES = 2**20
MAX_BYTES_A_TOKEN = 4096
"""Of a stream: what its framing, its keep-alives and everything else a server tells may take."""

LEFT = "left"
_REFUSED = (400, 422)
_SHOWN_CHARS = 300


class BenchFailed(Exception):
    """The server did not do what it was asked; the message says what it said."""


class Target:
    """`url` without a path. `ignores_eos`: False once the server refused to be asked for that."""

    def __init__(self, client: "httpx.AsyncClient", url: str, model: str, allowance: Allowance) -> None:
        self._client = client
        self.url = url
        self.model = model
        self.allowance = allowance
        self.ignores_eos = True

    async def models(self) -> list[str]:
        """What the server says it has. Raises BenchFailed."""
        import httpx

        path = f"{self.url}/v1/models"
        try:
            async with (
                asyncio.timeout(max(0.1, self.allowance.left_s)),
                self._client.stream("GET", path) as response,
            ):
                content = await content_of(response)
        except TimeoutError:
            raise BenchFailed(f"{self.url} did not answer in time") from None
        except httpx.HTTPError as error:
            raise BenchFailed(_unreachable(self.url, error)) from None
        except ValueError as error:
            raise BenchFailed(f"{path}: {error}") from None
        try:
            listed: Any = decoded(content)
            if response.is_success:
                return [str(model["id"]) for model in listed["data"]]
        except (ValueError, TypeError, KeyError):
            pass
        raise BenchFailed(_refusal(path, response.status_code, content))

    async def ask(
        self, messages: Sequence[Message], max_tokens: int, estimate: int, leave_after_s: float | None = None
    ) -> Timeline:
        """`estimate`: tokens of the prompt. Raises BenchFailed, and Spent when the allowance does not leave so much."""
        self.allowance.take(estimate + max_tokens)
        timeline = await self._stream(self._body(messages, max_tokens), leave_after_s)
        if timeline.status in _REFUSED and self.ignores_eos and "ignore_eos" in timeline.error:
            self.ignores_eos = False
            timeline = await self._stream(self._body(messages, max_tokens), leave_after_s)
        num_prompt = estimate if timeline.num_prompt is None else timeline.num_prompt
        num_output = len(timeline.token_s) if timeline.num_output is None else timeline.num_output
        self.allowance.correct(num_prompt + num_output - estimate - max_tokens)
        if timeline.error and timeline.error != LEFT:
            raise BenchFailed(timeline.error)
        if not timeline.token_s and timeline.error != LEFT:
            raise BenchFailed(f"{self.url} answered without any text")
        return timeline

    async def ask_together(
        self, prompts: Sequence[Sequence[Message]], max_tokens: int, estimate: int
    ) -> list[Timeline]:
        """One answer each, all asked at once. Raises the first failure, when all have ended."""
        asking = [self.ask(messages, max_tokens, estimate) for messages in prompts]
        answers = await asyncio.gather(*asking, return_exceptions=True)
        timelines: list[Timeline] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            timelines.append(answer)
        return timelines

    def _body(self, messages: Sequence[Message], max_tokens: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return body | {"ignore_eos": True} if self.ignores_eos else body

    async def _stream(self, body: dict[str, Any], leave_after_s: float | None) -> Timeline:
        left_s = max(0.1, self.allowance.left_s)
        leaves_first = leave_after_s is not None and leave_after_s < left_s
        url = f"{self.url}/v1/chat/completions"
        timeline = await stream(self._client, url, body, leave_after_s if leaves_first else left_s)
        if timeline.error == LEFT and not leaves_first:
            raise Spent("--max-time passed in the middle of an answer")
        return timeline


async def stream(client: "httpx.AsyncClient", url: str, body: dict[str, Any], leave_after_s: float | None) -> Timeline:
    """POST `body` and read the answer's events to their end, or leave after `leave_after_s`: the timeline's error is
    LEFT then. A refusal is in its status and error. Raises BenchFailed for a server that cannot be reached, or does
    not stream as OpenAI's do."""
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
        raise BenchFailed(f"{url} does not stream as OpenAI does: {shown(str(error))}") from None
    finally:
        timeline.end_s = time.monotonic()
    return timeline


async def _read(response: "httpx.Response", timeline: Timeline, max_bytes: int) -> None:
    """Raises ValueError for what is no stream, and for one that does not end where it must."""
    rest, num_bytes = b"", 0
    async for data in response.aiter_bytes():
        now_s = time.monotonic()
        num_bytes += len(data)
        if num_bytes > max_bytes or len(rest) > MAX_LINE_BYTES:
            raise ValueError(f"{num_bytes} bytes came, and it has not ended")
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            timeline.read_line(line, now_s)
    timeline.read_line(rest, time.monotonic())


def new_client(api_key: str | None, *, is_local: bool) -> "httpx.AsyncClient":
    """As many connections as are asked for. No proxy stands between this machine and itself."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=timeout, trust_env=not is_local)


def _refusal(path: str, status: int, content: bytes) -> str:
    """What the server said, if it said anything in words; one line without control codes."""
    text = content.decode(errors="replace")
    try:
        error = cast("dict[str, Any]", decoded(content))["error"]
        text = str(cast("dict[str, Any]", error)["message"] if isinstance(error, dict) else error)
    except (ValueError, TypeError, KeyError):
        pass
    hint = "; give the key in a file with --api-key-file" if status == 401 else ""
    return f"{path} answered with status {status}: {shown(' '.join(text.split()), _SHOWN_CHARS)}{hint}"


def _unreachable(path: str, error: Exception) -> str:
    return f"asking {path} failed: {shown(str(error)) or type(error).__name__}"
