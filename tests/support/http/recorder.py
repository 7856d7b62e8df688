"""A recorder of the answers that `httpx` and `httpx2` clients of this process receive, each checked as its route's
official models read it. `httpx2` is the transport of the `openai` and `anthropic` packages."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import httpx2
import pytest

from tests.support.http.official import answer_problem, event_problem

_UNPREFIXED = ("/chat/completions", "/completions", "/embeddings", "/responses")


class Recorder:
    """`num_checked`: answers, and events of streams, that were checked. `problems`: of all answers so far."""

    def __init__(self) -> None:
        self.num_checked = 0
        self.problems: list[str] = []

    def note(self, request: Any, response: Any, body: bytes) -> None:
        """Checks an answer. A stream that was cut is checked up to its last whole event."""
        path = request.url.path
        path = f"/v1{path}" if path.startswith(_UNPREFIXED) else path
        kind = response.headers.get("content-type", "")
        if kind.startswith("text/event-stream"):
            found = [event_problem(path, event) for event in _events(body)]
        elif kind.startswith("application/json"):
            is_anthropic = "anthropic-version" in request.headers
            found = [answer_problem(request.method, path, response.status_code, body, is_anthropic=is_anthropic)]
        else:
            return
        self.num_checked += len(found)
        self.problems += [f"{request.method} {path} {response.status_code}: {problem}" for problem in found if problem]

    def take_problems(self) -> list[str]:
        """Returns the problems since the last call."""
        taken, self.problems = self.problems, []
        return taken

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records every answer until the block ends."""
        with pytest.MonkeyPatch.context() as patch:
            for library in (httpx, httpx2):
                transport: Any = library.HTTPTransport
                patch.setattr(transport, "handle_request", _recorded(library, transport.handle_request, self.note))
            yield


def _events(body: bytes) -> Iterator[dict[str, Any]]:
    for block in body.decode().split("\n\n")[:-1]:
        for line in block.splitlines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line.removeprefix("data: "))


def _recorded(library: Any, handle: Callable[[Any, Any], Any], note: Callable[[Any, Any, bytes], None]) -> Any:
    class Copied(library.SyncByteStream):  # type: ignore[misc]
        """The stream of a response, and a copy of what was read of it."""

        def __init__(self, request: Any, response: Any) -> None:
            self._request, self._response, self._stream = request, response, response.stream
            self._parts: list[bytes] = []
            self._is_whole = False

        def __iter__(self) -> Iterator[bytes]:
            for part in self._stream:
                self._parts.append(part)
                yield part
            self._is_whole = True

        def close(self) -> None:
            self._stream.close()
            is_stream = self._response.headers.get("content-type", "").startswith("text/event-stream")
            if self._is_whole or is_stream:
                note(self._request, self._response, b"".join(self._parts))
                self._parts, self._is_whole = [], False

    def handle_request(transport: Any, request: Any) -> Any:
        response = handle(transport, request)
        response.stream = Copied(request, response)
        return response

    return handle_request
