"""Whatever answers where a command looks for a server: it says so in one line, and takes no more than a bound."""

import json
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from typer.testing import CliRunner

from interfaces.cli.foreign_answer import MAX_ANSWER_BYTES
from interfaces.cli.main import app
from interfaces.cli.top import reading
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
    """What a failing command says: one line, without control codes."""
    result = CliRunner().invoke(app, arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)
    (line,) = result.stderr.splitlines()
    assert line.isprintable()
    assert len(line) < 3000
    return line


def asked(command: str, url: str) -> str:
    return said("bench", url) if command == "bench" else said("top", "--once", "--url", url)


@pytest.mark.parametrize("command", ["top", "bench"])
def test_an_answer_is_no_deeper_than_can_be_read(command: str) -> None:
    with answering(b'{"data":' + b"[" * 100_000) as url:
        assert "answered with status 200" in asked(command, url)


@pytest.mark.parametrize("command", ["top", "bench"])
def test_an_answer_without_an_end_is_not_kept(command: str) -> None:
    with answering(b"x" * 2**20, endless=True) as url:
        assert {"top": "not as Cairn does", "bench": "longer than 16 MiB"}[command] in asked(command, url)
    assert MAX_ANSWER_BYTES == 16 * 2**20


@pytest.mark.parametrize("command", ["top", "bench"])
def test_a_refusal_is_shown_harmless(command: str) -> None:
    with answering(json.dumps({"error": {"message": ESCAPE}}).encode(), status=400) as url:
        assert "title" in asked(command, url)


def test_a_byte_now_and_then_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "TIMEOUT_S", 0.5)
    with answering(b"", endless=True) as url:
        assert said("top", "--once", "--url", url).endswith("did not answer within 0.5 s")


def test_names_of_models_are_shown_harmless() -> None:
    with answering(json.dumps({"data": [{"id": ESCAPE}, {"id": "b"}]}).encode()) as url:
        assert said("bench", url).endswith(r"\x1b]0;title\x07\x1b[31m\nsecond line, b")


@pytest.mark.parametrize(
    "content", [b"x" * 2**16, b'data: {"choices":[{"delta":{"content":"' + b"x" * 2**15 + b'"}}]}\n']
)
def test_a_stream_that_goes_on_is_left(content: bytes) -> None:
    with answering(content, endless=True) as url:
        assert "and it has not ended" in said("bench", url, "--model", "m")
