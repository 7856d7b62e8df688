"""A model hub on a loopback socket: the few routes that a snapshot download asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def fake_hub(models: Mapping[str, Mapping[str, bytes]], gated: frozenset[str] = frozenset()) -> Iterator[str]:
    """Serve files by model id; yields the endpoint."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            status, body, headers = _respond(self.path, models, gated)
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _respond(
    path: str, models: Mapping[str, Mapping[str, bytes]], gated: frozenset[str]
) -> tuple[int, bytes, Mapping[str, str]]:
    """Status, body and headers."""
    parts = path.split("?")[0].strip("/").split("/")
    is_api = parts[:2] == ["api", "models"]
    id = "/".join(parts[2:4] if is_api else parts[:2])
    if id in gated:
        return 403, b"{}", {"X-Error-Code": "GatedRepo"}
    if id not in models:
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
    if is_api:
        return 200, json.dumps(_listing(id, models[id], parts[4])).encode(), {}
    content = models[id]["/".join(parts[4:])]
    return 200, content, {"ETag": f'"{_digest(content)}"', "X-Repo-Commit": COMMIT}


def _digest(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _listing(id: str, files: Mapping[str, bytes], kind: str) -> object:
    if kind == "tree":
        return [
            {"type": "file", "path": path, "size": len(content), "oid": _digest(content)}
            for path, content in files.items()
        ]
    return {"id": id, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]}
