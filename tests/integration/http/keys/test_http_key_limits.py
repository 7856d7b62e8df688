"""Limits of a key: requests a minute and generations at once, which cannot be bypassed."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from adapters.fake.options import FakeOptions, reply_with
from domain.client import Client
from domain.errors import ComputeFailed
from domain.ids import SequenceId
from tests.support.http.servers.fake_service import FakeService, headers, keyed_service
from tests.support.patience import PATIENCE_S
from tests.support.processes.gate import Gate

OPTIONS = FakeOptions(reply=reply_with("ok"))
ENDLESS = {"prompt": "x", "stream": True, "ignore_eos": True, "max_tokens": 30_000}
COMPLETIONS = "/v1/completions"


def ask(service: FakeService, name: str = "ci", path: str = COMPLETIONS, **body: Any) -> httpx.Response:
    return service.client.post(path, json={"prompt": "x", **body}, headers=headers(name))


def refused(response: httpx.Response, retry_after_s: int) -> bool:
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (429, "rate_limit_exceeded"), response.text
    assert (error["type"], response.headers["retry-after"]) == ("rate_limit_error", str(retry_after_s))
    assert f"try again in {retry_after_s}s" in error["message"]
    return True


class TestRequestsAMinute:
    def test_headers_tell_and_a_minute_gives_all_back(self) -> None:
        client = Client("ci", requests_per_minute=3)
        with keyed_service(client, Client("other"), options=OPTIONS) as service:
            for remaining, reset in ((2, "20s"), (1, "40s"), (0, "60s")):
                response = ask(service)
                assert response.status_code == 200
                told = {name: response.headers[f"x-ratelimit-{name}-requests"] for name in ("limit", "remaining")}
                assert told == {"limit": "3", "remaining": str(remaining)}
                assert response.headers["x-ratelimit-reset-requests"] == reset
            response = ask(service)
            assert refused(response, 20)
            assert response.headers["x-ratelimit-remaining-requests"] == "0"
            assert service.events.of("HttpRefused")[-1].reason == "rate_limit_exceeded"
            assert ask(service, "other").status_code == 200
            assert "x-ratelimit-limit-requests" not in ask(service, "other").headers
            service.clock.advance(20)
            assert ask(service).status_code == 200
            assert refused(ask(service), 20)

    def test_every_route_counts_and_every_answer_but_health(self) -> None:
        sent = headers("ci")
        with keyed_service(Client("ci", requests_per_minute=6), options=OPTIONS) as service:
            for _ in range(9):
                assert service.client.get("/health", headers=sent).status_code == 200
            assert service.client.get("/v1/models", headers=sent).status_code == 200
            assert service.client.get("/v1/cache/stats", headers=sent).status_code == 403
            assert ask(service, prompt=7).status_code == 400
            assert ask(service, model="none-such").status_code == 404
            assert ask(service, path="/v1/cache/explain").status_code == 200
            assert ask(service, stream=True).status_code == 200
            assert refused(service.client.get("/v1/models", headers=sent), 10)
            json = {**sent, "content-type": "application/json"}
            assert refused(service.client.post(COMPLETIONS, content=b"not read", headers=json), 10)

    @pytest.mark.parametrize(
        "body",
        [{"n": 4}, {"prompt": ["a", "b", "c", "d"]}, {"prompt": ["a", "b"], "n": 2}, {"n": 4, "stream": True}],
        ids=["choices", "prompts", "both", "streamed"],
    )
    def test_each_generation_counts(self, body: dict[str, Any]) -> None:
        with keyed_service(Client("ci", requests_per_minute=6), options=OPTIONS) as service:
            response = ask(service, **body)
            assert response.status_code == 200
            assert ask(service).headers["x-ratelimit-remaining-requests"] == "1"
            # One token pays for being asked; the others are not there. Waiting as told is enough.
            response = ask(service, **body)
            assert refused(response, 40)
            service.clock.advance(40)
            assert ask(service, **body).status_code == 200

    @pytest.mark.parametrize(("path", "cost"), [("/v1/cache/warm", 3), ("/v1/cache/explain", 3)])
    def test_each_prompt_of_the_cache_routes_counts(self, path: str, cost: int) -> None:
        client = Client("ci", requests_per_minute=10, max_concurrent=1)
        with keyed_service(client, options=OPTIONS, reuses=True) as service:
            response = ask(service, path=path, prompt=["a", "b", "c"])
            assert response.status_code == 200, response.text
            assert response.headers["x-ratelimit-remaining-requests"] == str(10 - cost)


@contextmanager
def streaming(service: FakeService, **body: Any) -> Iterator[None]:
    """An answer without an end, until the block ends; then its client leaves."""
    with service.client.stream("POST", COMPLETIONS, json={**ENDLESS, **body}, headers=headers("ci")) as response:
        assert response.status_code == 200, response.read()
        yield


class TestAtOnce:
    def test_places_are_held_while_an_answer_goes_on(self) -> None:
        with keyed_service(Client("ci", max_concurrent=2), Client("b"), options=FakeOptions(eos_every=0)) as service:
            with streaming(service):
                assert ask(service, max_tokens=2).status_code == 200
                with streaming(service):
                    assert refused(ask(service), 1)
                    # What generates nothing goes on, and so do others.
                    assert service.client.get("/v1/models", headers=headers("ci")).status_code == 200
                    assert ask(service, "b", max_tokens=2).status_code == 200
            wait_for_places(service, 2)

    @pytest.mark.parametrize(
        ("path", "body"),
        [
            ("/tokenize", {"prompt": "x"}),
            ("/detokenize", {"tokens": [1]}),
            ("/apply-template", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
            ("/v1/cache/explain", {"prompt": ["x", "y"]}),
            ("/v1/cache/warm", {"prompt": ["x", "y"]}),
            ("/v1/embeddings", {"input": "x"}),
            ("/v1/rerank", {"query": "x", "documents": ["y"]}),
        ],
    )
    def test_whatever_reads_a_prompt_takes_one(self, path: str, body: dict[str, Any]) -> None:
        clients = Client("ci", max_concurrent=1), Client("b", max_concurrent=1)
        with keyed_service(*clients, options=FakeOptions(eos_every=0)) as service, streaming(service):
            response = service.client.post(path, json=body, headers=headers("ci"))
            assert (response.status_code, response.headers["retry-after"]) == (429, "1")
            assert service.client.post(path, json=body, headers=headers("b")).status_code in {200, 400}
            assert ask(service, "b", max_tokens=2).status_code == 200  # the place was given back

    def test_a_client_that_leaves_takes_nothing_with_it(self) -> None:
        """Nor keeps it: neither a stream that was cut nor a plain answer that was not waited for."""
        with keyed_service(Client("ci", max_concurrent=1), options=FakeOptions(eos_every=0)) as service:
            for _ in range(3):
                with streaming(service):
                    pass
                wait_for_places(service, 1)
            with httpx.Client(base_url=service.base_url, timeout=0.2) as hasty, pytest.raises(httpx.TimeoutException):
                hasty.post(COMPLETIONS, json={**ENDLESS, "stream": False}, headers=headers("ci"))
            wait_for_places(service, 1)

    def test_whatever_ends_badly_gives_its_places_back(self) -> None:
        def fail(operation: str, _sequence: SequenceId | None, count: int) -> None:
            if operation == "decode" and count > 1 and is_failing:
                raise ComputeFailed("no")

        is_failing = True
        options = FakeOptions(eos_every=0, hook=fail)
        with keyed_service(Client("ci", max_concurrent=1), options=options) as service:
            assert ask(service, max_tokens=9).status_code == 500
            assert b"compute_failed" in ask(service, max_tokens=9, stream=True).content
            is_failing = False
            assert ask(service, model="none-such").status_code == 404
            assert ask(service, min_tokens=99_999_999, max_tokens=99_999_999).status_code == 400
            assert ask(service, prompt="x" * 99_999).status_code == 400
            assert ask(service, max_tokens=2).status_code == 200

    def test_a_full_queue_keeps_no_place(self) -> None:
        options = FakeOptions(eos_every=0)
        with keyed_service(Client("ci", max_concurrent=4), options=options, max_queue=1) as service:
            assert ask(service, n=4).status_code == 503
            wait_for_places(service, 4, num_at_once=1)


def wait_for_places(service: FakeService, num_free: int, num_at_once: int | None = None) -> None:
    """Until so many generations are admitted again: a server notices soon, not at once, that a client has left."""
    body = {"n": num_at_once or num_free, "max_tokens": 2}
    service.wait_until(lambda: ask(service, **body).status_code == 200, "the places to be given back")
    assert ask(service, n=num_free + 1).status_code == 400


def test_a_place_is_taken_before_a_body_is_read() -> None:
    """Six bodies of 16 MiB of a key with one place took 2.7 GB, five of them to be refused."""
    gate = Gate("decode", 1)
    options = FakeOptions(eos_every=0, hook=gate)
    with keyed_service(Client("ci", max_concurrent=1), options=options) as service:
        with service.client.stream("POST", COMPLETIONS, json=ENDLESS, headers=headers("ci")) as stream:
            with socket.create_connection(("127.0.0.1", service.server.port), timeout=PATIENCE_S) as client:
                key = headers("ci")["authorization"]
                head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: localhost\r\nAuthorization: {key}\r\n"
                client.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 9000000\r\n\r\n".encode())
                assert client.recv(65_536).startswith(b"HTTP/1.1 429 ")
            assert service.client.get("/v1/models", headers=headers("ci")).status_code == 200  # it reads no prompt
            gate.open()
            stream.close()
        service.wait_until_idle()
        assert service.app.state.bodies.held_bytes == 0
