"""Commands against a server that is not Cairn: an error of one line, and a bound on what is read."""

import json
import re
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from interfaces.cli.client.running_server import MAX_ANSWER_BYTES
from interfaces.cli.main import app
from tests.support.patience import PATIENCE_S

ESCAPE = "\x1b]0;title\x07\x1b[31m\nsecond line"


@contextmanager
def answering(content: bytes, *, status: int = 200, endless: bool = False) -> Generator[str]:
    """The address of a server that says only this; `endless`: again and again until its client has gone."""
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection:
            connection.settimeout(PATIENCE_S)
            try:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 %d So\r\nConnection: close\r\n\r\n" % status + content)
                while endless and not ended.is_set():
                    connection.sendall(content or b" ")
                    ended.wait(0 if content else 0.01)
                # Who closes with something unread resets the connection, and its answer may be lost.
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65536):
                    pass
            except OSError:
                return  # it has gone

    def serve() -> None:
        while not ended.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            answer(connection)

    thread = threading.Thread(target=serve, name="foreign-answers")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(PATIENCE_S)


def said(*arguments: str) -> str:
    """The error of a failing command: one line, without control codes."""
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.isprintable()
    assert len(line) < 3000
    return line


PROMPT = {"prompt": "a"}
WARMED: dict[str, Any] = {"prompt_tokens": 1, "reused_tokens": 0, "computed_tokens": 1, "stored_tokens": None}
EXPLAINED: dict[str, Any] = {
    **{"prompt_tokens": 1, "hot_tokens": 0, "store_tokens": 0, "computed_tokens": 1, "stopped_at": 0},
    **{"reason": "never-seen", "sentence": "s", "known_tokens": 0, "divergence": None, "nearest_fork": None},
    **{"note": ""},
}
NO_PROMPTS: tuple[Any, ...] = (1, ["x"], [None], [{}], [[]])
CLEARED: dict[str, Any] = {
    "hot_records": 0,
    "records": 0,
    "bytes": 0,
    "documents": 0,
    "document_bytes": 0,
    "problem": None,
}


def of_cache(command: str, url: str, tmp_path: Path) -> list[str]:
    file = tmp_path / "request.json"
    file.write_text(json.dumps(PROMPT))
    return ["cache", command, *(["-y"] if command == "clear" else [str(file)]), "--url", url]


def test_an_answer_is_no_deeper_than_can_be_read() -> None:
    with answering(b'{"data":' + b"[" * 100_000) as url:
        assert "answered with status 200" in said("status", "--url", url)


def test_an_answer_without_an_end_is_not_kept() -> None:
    with answering(b"x" * 2**20, endless=True) as url:
        assert "not as Cairn does" in said("status", "--url", url)
    assert MAX_ANSWER_BYTES == 16 * 2**20


def test_a_refusal_is_shown_harmless() -> None:
    with answering(json.dumps({"error": {"message": ESCAPE}}).encode(), status=400) as url:
        assert "title" in said("status", "--url", url)


def test_a_byte_now_and_then_is_no_answer() -> None:
    with answering(b"", endless=True) as url:
        assert said("status", "--url", url, "--timeout", "0.5").endswith("did not answer within 0.5 s")


@pytest.mark.parametrize("command", ["explain", "warm", "clear"])
@pytest.mark.parametrize(
    "answer",
    [
        b"<html>It works!</html>",
        b"[]",
        b'{"prompts": [{"prompt_',
        b"{}",
        *(json.dumps({"model": "m", "prompts": prompts}).encode() for prompts in NO_PROMPTS),
        json.dumps({"object": "cairn.warmed", "prompts": [WARMED]}).encode(),
        json.dumps({"model": "m", "prompts": [{**WARMED, "reused_tokens": "many"}]}).encode(),
        json.dumps({"model": "m", "prompts": [{**EXPLAINED, "divergence": {"position": 0}}]}).encode(),
        json.dumps({"model": "m", "prompts": [{**EXPLAINED, "reason": "weather"}]}).encode(),
        json.dumps({"object": "cairn.cleared", **CLEARED, "bytes": "all"}).encode(),
        json.dumps({"object": "cairn.cleared", "records": 1}).encode(),
    ],
)
def test_an_unreadable_answer_is_reported_as_foreign(command: str, answer: bytes, tmp_path: Path) -> None:
    with answering(answer) as url:
        assert re.search("not (as|this version of) Cairn", said(*of_cache(command, url, tmp_path)))


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        ("explain", {"object": "cairn.explanation", "model": ESCAPE, "prompts": [{**EXPLAINED, "sentence": ESCAPE}]}),
        ("warm", {"object": "cairn.warmed", "model": ESCAPE, "prompts": [WARMED]}),
        ("clear", {"object": "cairn.cleared", **CLEARED, "problem": ESCAPE}),
    ],
)
@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_text_of_an_answer_is_printed_without_control_codes(
    command: str, answer: dict[str, Any], flags: tuple[str, ...], tmp_path: Path
) -> None:
    reported = json.dumps(answer).replace("title", "title\\udc9b\\u009b")
    with answering(reported.encode()) as url:
        result = CliRunner().invoke(app, [*of_cache(command, url, tmp_path), *flags])
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert all(line.isprintable() for line in result.output.splitlines())
    assert "title" in result.output
