"""Clients of a server under test: raw sockets, readers of event streams, requests about the prefix cache, key files."""

import atexit
import json
import socket
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from interfaces.http.answering.documented import CACHE_HEADER
from tests.support.http.servers.fake_service import FakeService
from tests.support.patience import PATIENCE_S


def events(transcript: str) -> list[Any]:
    """Every event's JSON, after checking that the transcript is well formed and ends with `[DONE]`."""
    blocks = transcript.split("\n\n")
    assert blocks[-1] == "", "the last event is not complete"
    payloads = [block.removeprefix("data: ") for block in blocks[:-1] if not block.startswith(":")]
    assert all(block.startswith(("data: ", ":")) and "\n" not in block for block in blocks[:-1])
    assert payloads[-1] == "[DONE]"
    assert "[DONE]" not in payloads[:-1]
    return [json.loads(payload) for payload in payloads[:-1]]


def chat_text(chunks: list[Any], index: int = 0) -> str:
    """The content of one choice of a streamed chat."""
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ()) if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


def completion_text(chunks: list[Any], index: int = 0) -> str:
    """The text of one choice of a streamed text completion."""
    return "".join(
        choice["text"] for chunk in chunks for choice in chunk.get("choices", ()) if choice["index"] == index
    )


class RawClient:
    """One connection and one POST. `receive_buffer_bytes` makes the client a slow one; `announce_extra_bytes`, one
    whose body never comes to its end."""

    def __init__(
        self,
        base_url: str,
        path: str,
        body: Any,
        receive_buffer_bytes: int | None = None,
        announce_extra_bytes: int = 0,
    ) -> None:
        address = urlsplit(base_url)
        payload = json.dumps(body).encode()
        length = len(payload) + announce_extra_bytes
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {length}\r\n\r\n"
        )
        self._socket = socket.socket()
        if receive_buffer_bytes is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(PATIENCE_S)
        self._socket.connect((address.hostname, address.port))
        self._socket.sendall(head.encode() + payload)
        self.received = b""

    def read_until(self, marker: bytes) -> bytes:
        """Everything received so far, once it holds `marker`."""
        while marker not in self.received:
            data = self._socket.recv(65_536)
            assert data, f"the server closed the connection before {marker!r}: {self.received[-300:]!r}"
            self.received += data
        return self.received

    def leave(self) -> None:
        self._socket.close()


CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
EXPLAIN = "/v1/cache/explain"
WARM = "/v1/cache/warm"

TEXT = "".join(f"line {number}\n" for number in range(100))
PROMPT = TEXT[:700]
"""Two full blocks of 256 tokens and 188 more."""
EDITED = PROMPT[:600] + "EDITED" + PROMPT[606:]


def complete(service: FakeService, prompt: Any = PROMPT, **fields: Any) -> str:
    """Returns the header."""
    response = service.client.post(COMPLETIONS, json={"prompt": prompt, "max_tokens": 1, **fields})
    assert response.status_code == 200, response.text
    return response.headers[CACHE_HEADER]


def explain(service: FakeService, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    """The explanation of one prompt."""
    response = service.client.post(EXPLAIN, json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    (told,) = response.json()["prompts"]
    return told


def warm(service: FakeService, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    response = service.client.post(WARM, json={"prompt": prompt, **fields})
    assert response.status_code == 200, response.text
    (told,) = response.json()["prompts"]
    return told


def golden(reason: str, sentence: str, stopped_at: int = 0, **others: Any) -> dict[str, Any]:
    """An explanation of a prompt of 700 tokens of which the hot tier has `stopped_at`."""
    return {
        "prompt_tokens": 700,
        "live_tokens": 0,
        "shared_tokens": 0,
        "hot_tokens": stopped_at,
        "store_tokens": 0,
        "computed_tokens": 700 - stopped_at,
        "stopped_at": stopped_at,
        "reason": reason,
        "sentence": sentence,
        "known_tokens": stopped_at,
        "divergence": None,
        "nearest_fork": None,
        "note": "",
    } | others


_FOLDER = tempfile.TemporaryDirectory(prefix="cairn-keys-")
atexit.register(_FOLDER.cleanup)


def key_argument(key: str) -> tuple[str, str]:
    file = Path(_FOLDER.name) / key
    file.write_text(f"{key}\n")
    return "--api-key-file", str(file)
