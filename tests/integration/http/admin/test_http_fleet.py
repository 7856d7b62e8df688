"""The other servers of a fleet, as one server's admin page lists them."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

from adapters.web.peer_reader import MAX_BYTES
from application.settings import ServerSettings
from domain.client import Client
from tests.support.http.servers.fake_service import DEFAULT_MODEL, fake_service, headers, keyed_service

UNKNOWN = {"waiting": None, "running": None, "version": None, "reuse": None}


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """A server that gives this answer to every connection. Yields its address."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def serve() -> None:
            while True:
                try:
                    client, _ = listener.accept()
                except OSError:
                    return
                with client:
                    client.recv(65_536)
                    client.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def listed(*urls: str, **rest: Any) -> list[dict[str, Any]]:
    with fake_service(peers=urls) as service:
        answer = service.client.get("/admin/api/fleet")
        assert answer.status_code == 200, answer.text
        data: list[dict[str, Any]] = answer.json()["data"]
        return data


def test_a_server_without_peers_lists_none() -> None:
    assert listed() == []


def test_open_servers_show_all_and_those_with_keys_what_needs_none() -> None:
    with fake_service(reuses=True) as ready, keyed_service(Client("one")) as keyed:
        for prompt in ("x" * 600, "x" * 600 + "y" * 600):
            body = {"model": DEFAULT_MODEL, "prompt": prompt, "max_tokens": 1}
            assert ready.client.post("/v1/completions", json=body).status_code == 200
        first, second = listed(ready.base_url, keyed.base_url)
        known = {"url": ready.base_url, "ready": True, "problem": "", "waiting": 0, "running": 0, "version": "9.9"}
        assert first == {**known, "reuse": first["reuse"]}
        assert 0.2 < first["reuse"] < 0.4, "a third of two prompts"
        told = {"url": keyed.base_url, "ready": False, "problem": "no model is loaded yet", "waiting": 0, "running": 0}
        assert second == {**told, "version": None, "reuse": None}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "no answer (RemoteProtocolError)"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "its /health/ready is not that of Cairn"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * MAX_BYTES * 2, "its /health/ready is not that of Cairn"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, "its /health/ready is not that of Cairn"),
        (b"HTTP/1.1 302 Found\r\nLocation: /health\r\n\r\n", "its /health/ready is not that of Cairn"),
    ],
    ids=["nothing", "another form", "too long", "too deep", "a redirect"],
)
def test_what_is_no_answer_of_cairn_is_shown_as_none(answer: bytes, problem: str) -> None:
    with answering(answer) as url:
        assert listed(url) == [{"url": url, "ready": None, "problem": problem, **UNKNOWN}]


def test_what_has_another_form_is_unknown() -> None:
    body = (
        b'{"status": "ready", "problem": 3, "waiting": -1, "running": "2", "version": ["1"], "figures": {"reuse": [7]}}'
    )
    with answering(b"HTTP/1.1 200 OK\r\n\r\n" + body) as url:
        assert listed(url) == [{"url": url, "ready": True, "problem": "", **UNKNOWN}]


def test_a_server_that_is_gone_is_listed_and_no_key_is_sent() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert listed(url) == [{"url": url, "ready": None, "problem": "no answer (ConnectError)", **UNKNOWN}]


def test_only_admins_see_the_fleet() -> None:
    with keyed_service(Client("root", admin=True), Client("user"), settings=ServerSettings(port=0, api_key="x")) as one:
        for status, whose in ((401, {}), (403, headers("user")), (200, headers("root"))):
            assert one.client.get("/admin/api/fleet", headers=whose).status_code == status
