"""Answers that the official models do not read are noticed, whole and streamed."""

import json
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.http.recorder import Recorder

MODEL = {"id": "m", "object": "model", "created": 1, "owned_by": "o"}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}


def problems(path: str, kind: str, body: str, method: str = "GET", status: int = 200) -> list[str]:
    recorder = Recorder()
    request = SimpleNamespace(method=method, url=urlsplit(f"http://h{path}"), headers=dict[str, str]())
    response = SimpleNamespace(status_code=status, headers={"content-type": kind})
    recorder.note(request, response, body.encode())
    assert recorder.num_checked
    return recorder.take_problems()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [({}, ""), ({"owner": "o"}, "has ['owner']"), ({"created": None}, "created"), ({"created": "1"}, "created")],
)
def test_a_whole_answer(changes: dict[str, Any], problem: str) -> None:
    found = problems("/v1/models/m", "application/json", json.dumps({**MODEL, **changes}))
    assert len(found) == bool(problem)
    assert problem in "".join(found)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
def test_a_stream_is_read_up_to_its_last_whole_event(path: str) -> None:
    stream = "".join(f"data: {json.dumps(one)}\n\n" for one in (CHUNK, {**CHUNK, "created": "1"}))
    cut = f": a comment\n\n{stream}data: {{"
    (found,) = problems(path, "text/event-stream; charset=utf-8", cut, "POST")
    assert "created" in found


def test_an_error() -> None:
    body = json.dumps({"error": {"message": "no", "type": 3}})
    assert len(problems("/v1/models/m", "application/json", body, status=404)) == 1
