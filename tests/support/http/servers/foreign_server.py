"""A server that speaks OpenAI's streamed chat and is not Cairn: as little as the dialect allows, and as oddly.

It refuses fields it does not know, tells tokens only if it is told to, puts two tokens into a chunk, and writes line
separators of Unicode as they are.
"""

import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.patience import PATIENCE_S

KNOWN = {"model", "messages", "max_tokens", "temperature", "stream", "stream_options"}


class ForeignServer:
    """`seen`: the bodies it was asked with. `tells_usage`: whether it counts tokens, never which it reused."""

    def __init__(self, models: list[str], *, tells_usage: bool, key: str | None) -> None:
        self.models = models
        self.tells_usage = tells_usage
        self.key = key
        self.seen: list[dict[str, Any]] = []
        self.url = ""


class _Listener(ThreadingHTTPServer):
    def __init__(self, server: ForeignServer) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.served = server


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": model} for model in self._server.models]})

    def do_POST(self) -> None:
        server = self._server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        server.seen.append(body)
        if server.key is not None and self.headers["authorization"] != f"Bearer {server.key}":
            self._answer(401, {"error": "who are you?"})
        elif unknown := set(body) - KNOWN:
            self._answer(400, {"error": {"message": f"unknown fields: {sorted(unknown)}"}})
        elif body["model"] not in server.models:
            self._answer(404, {"error": {"message": f"no model {body['model']}\x1b[31m"}})
        else:
            self._stream(body)

    @property
    def _server(self) -> ForeignServer:
        assert isinstance(self.server, _Listener)
        return self.server.served

    def _stream(self, body: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for _ in range(body["max_tokens"] // 2):
            self._event({"choices": [{"delta": {"content": "two\u2028 "}}]})
        if self._server.tells_usage:
            self._event({"choices": [], "usage": {"prompt_tokens": 90, "completion_tokens": body["max_tokens"]}})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, event: Any) -> None:
        self.wfile.write(b"data:" + json.dumps(event, ensure_ascii=False).encode() + b"\r\n\r\n")

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Nobody reads it."""


@contextmanager
def foreign_server(models: list[str], *, tells_usage: bool = True, key: str | None = None) -> Generator[ForeignServer]:
    server = ForeignServer(models, tells_usage=tells_usage, key=key)
    listener = _Listener(server)
    server.url = f"http://127.0.0.1:{listener.server_address[1]}"
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,), name="foreign-server")
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown()
        listener.server_close()
        thread.join(PATIENCE_S)
