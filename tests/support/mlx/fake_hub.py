"""A model hub on a loopback socket: the few routes that a search and a snapshot download ask for."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.patience import PATIENCE_S

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def fake_hub(
    models: Mapping[str, Mapping[str, bytes]],
    gated: frozenset[str] = frozenset(),
    ranges: list[tuple[str, int]] | None = None,
    stored: list[str] | None = None,
    gate: threading.Event | None = None,
) -> Iterator[str]:
    """Serve files by model id; yields the endpoint. `ranges`: takes the path of each file whose rest was requested, and
    its first byte. `gate`: the second half of weights is sent once it is set. `stored`: weights lie on another host, as
    the hub's large files do; takes the token of each request there."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path, is_elsewhere = self.path.removeprefix("/stored"), self.path.startswith("/stored")
            status, body, headers = _respond(path, models, gated, is_linked=stored is not None)
            if stored is not None and is_elsewhere:
                stored.append(self.headers.get("Authorization", ""))
            elif stored is not None and path.endswith(".safetensors"):
                place = f"http://localhost:{server.server_port}/stored{path}"
                linked = {"X-Linked-Etag": f'"{_sha256(body)}"', "X-Linked-Size": str(len(body))}
                status, body, headers = 302, b"", {**headers, **linked, "Location": place}
            begin = 0
            if status == 200 and (asked := self.headers.get("Range")) and ranges is not None:
                begin = int(asked.removeprefix("bytes=").removesuffix("-"))
                ranges.append((self.path.rpartition("/")[2], begin))
                headers = {**headers, "Content-Range": f"bytes {begin}-{len(body) - 1}/{len(body)}"}
                status = 206
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body) - begin)}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                _send(self.wfile, body[begin:], gate if path.endswith(".safetensors") else None)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _send(stream: BufferedIOBase, body: bytes, gate: threading.Event | None) -> None:
    """The second half once the gate is open. A client may have left by then."""
    half = len(body) if gate is None else len(body) // 2
    stream.write(body[:half])
    assert gate is None or gate.wait(PATIENCE_S)
    with suppress(ConnectionError):
        stream.write(body[half:])


def _respond(
    path: str, models: Mapping[str, Mapping[str, bytes]], gated: frozenset[str], *, is_linked: bool
) -> tuple[int, bytes, Mapping[str, str]]:
    """Status, body and headers."""
    parts = path.split("?")[0].strip("/").split("/")
    is_api = parts[:2] == ["api", "models"]
    if parts == ["api", "models"]:
        return 200, json.dumps(_found(models, parse_qs(urlsplit(path).query))).encode(), {}
    id = "/".join(parts[2:4] if is_api else parts[:2])
    if id in gated:
        return 403, b"{}", {"X-Error-Code": "GatedRepo"}
    if id not in models:
        return 404, b"{}", {"X-Error-Code": "RepoNotFound"}
    if is_api:
        listing = _listing(id, models[id], parts[4] if len(parts) > 4 else "", is_linked=is_linked)
        return 200, json.dumps(listing).encode(), {}
    content = models[id][unquote("/".join(parts[4:]))]
    return 200, content, {"ETag": f'"{_etag(content)}"', "X-Repo-Commit": COMMIT}


def _found(models: Mapping[str, Mapping[str, bytes]], asked: Mapping[str, list[str]]) -> object:
    """The answer to a search. All models are in MLX's format; those named so are for speech."""
    assert asked["filter"] == ["mlx"]
    return [
        {
            "id": id,
            "downloads": 7,
            "gated": False,
            "pipeline_tag": "automatic-speech-recognition" if "speech" in id else "text-generation",
            "config": _config(files),
            "safetensors": {"parameters": {"BF16": len(files["model.safetensors"]) // 2}, "total": 1},
        }
        for id, files in models.items()
        if asked["search"][0] in id
    ]


def _config(files: Mapping[str, bytes]) -> object:
    try:
        return json.loads(files["config.json"])
    except (KeyError, ValueError):
        return None


def _digest(content: bytes) -> str:
    """The name that git has for it."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _etag(content: bytes) -> str:
    return _digest(content)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _listing(id: str, files: Mapping[str, bytes], kind: str, *, is_linked: bool) -> object:
    if kind == "tree":
        return [
            {"type": "file", "path": path, "size": len(content), "oid": _digest(content)}
            for path, content in files.items()
        ]
    siblings = [
        {"rfilename": path, "size": len(content), "blobId": _digest(content)}
        | (
            {"lfs": {"sha256": _sha256(content), "size": len(content), "pointerSize": 1}}
            if is_linked and "safe" in path
            else {}
        )
        for path, content in files.items()
    ]
    return {"id": id, "sha": COMMIT, "siblings": siblings, "config": _config(files)}
