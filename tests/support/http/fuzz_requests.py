"""Throw random bytes, headers, lengths and bodies at a running server, and see that it stays what it is.

Against a server that runs already: `python -m tests.support.http.fuzz_requests URL COUNT SEED [PID]`. Prints one JSON
line with counts by answer; exits non-zero when something was answered with a 5xx other than 503, when a well-formed
request in between was not answered, or when the process `PID` grew. Sends to loopback addresses only.
"""

import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

GENERATING = ("/v1/chat/completions", "/v1/completions", "/v1/responses")
PATHS = (*GENERATING, "/v1/cache/explain", "/v1/cache/warm", "/v1/cache/clear")
STORED = ("/v1/responses/x", "/v1/responses/x/input_items?limit=1&after=y", "/v1/responses/x/cancel")
OTHER_PATHS = ("/", "/v1/models", "/v1/models/x", "/health", "/health/ready", "/metrics", "/v1/cache/stats", "/schema")
METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "TRACE", "CONNECT", "PRI", "get", "")
FIELDS = (
    "model", "messages", "prompt", "max_tokens", "n", "stop", "stream", "seed", "tools", "input", "store", "include",
    "previous_response_id",
)  # fmt: skip
CHECK_EVERY = 50
"""After so many, one well-formed request must get its answer."""

WARM_UP = 1_000
"""Requests after which memory has reached its level: what grows from then on is a leak."""

MAX_GROWTH_BYTES = 48 << 20
ANSWER_WITHIN_S = 30.0
"""For a well-formed request."""

PATIENCE_S = 0.2
"""For all others: many are never complete, and the client leaves."""

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
VALUES = (None, True, -1, 0, 7, 2**64, 10**40, 1e308, "", "x" * 3_000, "\x00\n", "é漢🌍", [], [[]], {}, {"a": None})


_POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_CHUNKS = b'f\r\n{"prompt": "x",\r\n10\r\n"max_tokens": 1} \r\n0\r\nTrailer: 1\r\n\r\n'
SEEDS = (
    b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/models HTTP/1.0\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: null\r\n\r\n",
    _POST + b'Content-Length: 30\r\n\r\n{"prompt": "x","max_tokens":1}',
    _POST + b"Transfer-Encoding: chunked\r\n\r\n" + _CHUNKS,
    b"POST /v1/cache/explain HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: Upgrade\r\nUpgrade: h\r\n\r\n",
)
INSERTS = (b"\r\n", b":", b" ", b"9" * 20, b"Content-Length: 5\r\n", b"x" * 40_000)

MARKUP = (
    "<|im_end|>",
    "<|im_start|>system\n",
    "</s>",
    "<think>",
    "<|im_",
    "end|>",
    "\ud800",
    "\U0010fffd",
    "\\u003c|im_end|>",
)
ARGUMENTS = ("eos_token", "bos_token", "messages", "documents", "range", "enable_thinking", "tone", "self", "_", "a b")


def templated_chat(draw: random.Random) -> dict[str, Any]:
    """A chat whose strings spell markup, with template arguments and calls of any size and depth."""

    def text() -> str:
        return "".join(draw.choices((*MARKUP, "word ", "\n"), k=draw.choice((0, 1, 3, 40))))

    def value() -> Any:
        inner: Any = draw.choice((*VALUES, text(), "x" * 70_000, [text()] * 30_000))
        for _ in range(draw.choice((0, 1, 90, 900))):
            inner = draw.choice(([inner], {text(): inner}))
        return inner

    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": json.dumps({text(): value()})}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": text()},
        {"role": "user", "content": text(), "name": text() or "n"},
        {"role": "assistant", "content": text(), "reasoning_content": text(), "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": text()},
        {"role": "user", "content": text()},
    ]
    tool = {"name": "add", "description": text(), "parameters": {"type": "object", "x": value()}}
    body: dict[str, Any] = {**CHAT, "messages": messages[draw.choice((0, 1, 4)) :]}
    if draw.random() < 0.7:
        body["chat_template_kwargs"] = {draw.choice(ARGUMENTS): value() for _ in range(draw.choice((1, 1, 5)))}
    if draw.random() < 0.3:
        body["tools"] = [{"type": "function", "function": tool}]
    return body


class WrongAnswer(AssertionError):
    """The server did what no request may make it do."""


class Fuzzer:
    """`url` is on a loopback address. Everything sent follows from `seed`."""

    def __init__(self, url: str, seed: int) -> None:
        address = urlsplit(url)
        if address.hostname not in ("127.0.0.1", "::1", "localhost"):
            raise ValueError("only a server of this machine")
        self._address = (address.hostname, address.port or 80)
        self._host = address.netloc
        self._random = random.Random(seed)
        self.answers: Counter[str] = Counter()

    def run(self, count: int, grown: Callable[[int], None] = lambda _: None) -> None:
        """`grown` is told how many were sent, after each check."""
        for number in range(count):
            sent = self._draw()
            status = self._exchange(sent, PATIENCE_S, half_closes=self._random.random() < 0.5)
            self.answers[status] += 1
            if status.startswith("5") and status != "503":
                raise WrongAnswer(f"{status} to {sent[:300]!r}")
            if number % CHECK_EVERY == CHECK_EVERY - 1:
                self.check()
                grown(number + 1)

    def check(self) -> None:
        status = self._exchange(self._request("POST", PATHS[0], json.dumps(CHAT).encode(), []), ANSWER_WITHIN_S)
        if status != "200":
            raise WrongAnswer(f"a well-formed request got {status}")

    def _exchange(self, sent: bytes, timeout_s: float, *, half_closes: bool = False) -> str:
        """The status of the first answer; "closed" where the server closed without one, "waiting" where neither came
        in time."""
        received = b""
        with socket.create_connection(self._address, timeout=ANSWER_WITHIN_S) as connection:
            with suppress(OSError):  # the server may close before it has read everything
                connection.sendall(sent)
                if half_closes:
                    connection.shutdown(socket.SHUT_WR)
            connection.settimeout(timeout_s)
            try:
                while b"\r\n" not in received and (data := connection.recv(65_536)):
                    received += data
            except ConnectionError:
                pass
            except TimeoutError:
                return "waiting"
        return received.split(b" ", 2)[1].decode() if received.startswith(b"HTTP/1.1 ") else "closed"

    def _draw(self) -> bytes:
        kinds = (
            self._noise,
            self._spoiled,
            self._headers,
            self._lengths,
            self._chunks,
            self._junk,
            self._nested,
            self._templated,
            self._pipeline,
        )
        return self._random.choice(kinds)()

    def _noise(self) -> bytes:
        """Bytes that are no HTTP at all."""
        return self._random.randbytes(self._random.choice((1, 10, 100, 5_000, 100_000)))

    def _spoiled(self) -> bytes:
        """Good requests, some after one another, with bytes changed, removed, doubled or put in, or cut short."""
        draw = self._random
        data = bytearray(b"".join(draw.choices(SEEDS, k=draw.choice((1, 1, 2, 5)))))
        for _ in range(draw.choice((0, 1, 2, 8))):
            at = draw.randrange(len(data))
            match draw.randrange(4):
                case 0:
                    data[at] = draw.randrange(256)
                case 1:
                    del data[at : at + draw.choice((1, 4, 64))]
                case 2:
                    data[at:at] = data[at : at + draw.choice((1, 16, 200))]
                case _:
                    data[at:at] = draw.choice((*INSERTS, draw.randbytes(draw.choice((1, 8, 3_000)))))
            data = data or bytearray(b"\r\n")
        return bytes(data[: draw.choice((len(data), draw.randrange(len(data) + 1)))])

    def _headers(self) -> bytes:
        """Many, long or odd headers."""
        fields = []
        for _ in range(self._random.choice((1, 5, 90, 2_000))):
            name = self._random.choice(
                ("x-a", "cookie", "host", "origin", "authorization", "x-request-id", "traceparent")
            )
            value = self._random.choice((b"a", b"", b"\xff\xfe", b"a" * 300, b"http://evil.example", b"1" * 20_000))
            fields.append((name, value))
        return self._request(self._method(), self._path(), b"", fields)

    def _lengths(self) -> bytes:
        """A body that is shorter or longer than announced, or announced oddly."""
        body = json.dumps(CHAT).encode()
        announced = self._random.choice((0, 1, len(body) - 1, len(body) + 5, 2**31, 2**63, 2**64, 10**30, -1))
        head = f"POST {self._path()} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        return head.encode() + f"Content-Length: {announced}\r\n\r\n".encode() + body

    def _chunks(self) -> bytes:
        head = f"POST {self._path()} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        parts = [head.encode() + b"Transfer-Encoding: chunked\r\n\r\n"]
        for _ in range(self._random.choice((0, 1, 5))):
            size = self._random.choice((b"1", b"5", b"ffffffffffffffffff", b"-1", b"zz", b"0", b"5;" + b"x" * 5_000))
            parts.append(size + b"\r\n" + self._random.choice((b"{", b"{}   ", b"hello")) + b"\r\n")
        return b"".join(parts) + self._random.choice((b"0\r\n\r\n", b"", b"0\r\nx: y\r\n\r\n"))

    def _junk(self) -> bytes:
        """Well-formed HTTP and JSON with values that are not expected."""
        body = {**CHAT, "prompt": "x", "input": [{"role": "user", "content": "x"}]}
        for _ in range(self._random.choice((1, 2, 5))):
            field = self._random.choice(FIELDS)
            body[field] = self._random.choice(VALUES)
        return self._request("POST", self._random.choice(PATHS), json.dumps(body).encode(), [])

    def _nested(self) -> bytes:
        """A field that is deep, or wide, or both, and perhaps never closed; some of it inside of a string."""
        opening, closing = self._random.choice((("[", "]"), ('{"a":', "}"), ("[[],", "]"), ('"[', '"')))
        depth = self._random.choice((1, 100, 3_000, 70_000))
        value = opening * depth + self._random.choice(("0", "", '"x"')) + closing * self._random.choice((depth, 0))
        field = self._random.choice(("messages", "prompt", "tools", "metadata", "response_format", "x"))
        body = json.dumps(CHAT)[:-1] + f', "{field}": {value}}}'
        return self._request("POST", self._random.choice(PATHS), body.encode(), [])

    def _templated(self) -> bytes:
        return self._request("POST", PATHS[0], json.dumps(templated_chat(self._random)).encode(), [])

    def _pipeline(self) -> bytes:
        one = self._request(self._method(), self._path(), b"", [])
        return one * self._random.choice((2, 20, 300))

    def _method(self) -> str:
        return self._random.choice(METHODS)

    def _path(self) -> str:
        if self._random.random() < 0.8:
            return self._random.choice(PATHS + OTHER_PATHS + STORED)
        return self._random.choice(
            ("/" + "a" * 100_000, "/%00", "//", "/../../etc/passwd", "*", "/?" + "q=1&" * 500, "é")
        )

    def _request(self, method: str, path: str, body: bytes, fields: list[tuple[str, bytes]]) -> bytes:
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n".encode()
        head += b"".join(name.encode() + b": " + value + b"\r\n" for name, value in fields)
        if body:
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()
        return head + b"\r\n" + body


def resident_bytes(pid: int) -> int:
    """Resident memory of a process. Linux only."""
    line = next(one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


def main(url: str, count: int, seed: int, pid: int | None = None) -> None:
    level_bytes = 0

    def watch(number: int) -> None:
        nonlocal level_bytes
        if pid is None:
            return
        if number <= WARM_UP or not level_bytes:
            level_bytes = max(level_bytes, resident_bytes(pid))
        elif (now_bytes := resident_bytes(pid)) > level_bytes + MAX_GROWTH_BYTES:
            raise WrongAnswer(f"after {number} requests memory had grown from {level_bytes} to {now_bytes} bytes")

    fuzzer = Fuzzer(url, seed)
    fuzzer.run(count, watch)
    grown_bytes = resident_bytes(pid) - level_bytes if pid is not None else None
    sys.stdout.write(json.dumps({"answers": dict(sorted(fuzzer.answers.items())), "grown_bytes": grown_bytes}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], *(int(argument) for argument in sys.argv[2:5]))
