"""Bodies that are small on the wire and large in memory."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from adapters.fake.options import FakeOptions, reply_with
from domain.request.request import ChatPrompt, TextPrompt
from interfaces.http.incoming.request_context import LARGE_BYTES
from interfaces.http.openai import completions
from interfaces.http.responses import request
from interfaces.http.responses.compaction import Seal
from interfaces.http.responses.request import ResponsesRequest
from tests.support.http.servers.fake_service import fake_service


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/cache/explain", "/tokenize"])
def test_a_body_of_too_many_values_is_refused_before_they_exist(path: str) -> None:
    """16 MiB of them took 774 MB and stopped the event loop for seconds."""
    bomb = b'{"messages":[{"role":"user","content":"x"}],"input":[{"type":"x","a":[%s[]]}]}' % (b"[]," * 66_000)
    with fake_service() as service:
        response = service.client.post(path, content=bomb, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "holds more than 1048576 values" in response.json()["error"]["message"]


def test_arguments_of_tool_calls_count_too() -> None:
    function = {"name": "f", "arguments": "[" + "[]," * 66_000 + "[]]"}
    calls = [{"id": "1", "type": "function", "function": function}]
    body = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": calls}]}
    with fake_service() as service:
        error = service.client.post("/v1/chat/completions", json=body).json()["error"]
    assert "the arguments of tool calls hold more than 1048576 values" in error["message"]
    assert error["param"] == "messages"


def test_large_bodies_are_decoded_and_converted_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """500,000 keys of `logit_bias` took a second to convert."""
    threads: list[tuple[str, threading.Thread]] = []

    def recorded(what: str, work: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(given: Any) -> Any:
            threads.append((what, threading.current_thread()))
            return work(given)

        return run

    monkeypatch.setattr(completions, "IdRow", recorded("decode", completions.IdRow))
    monkeypatch.setattr(completions, "plain_prompts", recorded("convert", lambda _body: [TextPrompt("x")]))
    with fake_service(FakeOptions(reply=reply_with("ok"))) as service:
        for padding, in_loop in (("", True), (" " * LARGE_BYTES, False)):
            body = '{"prompt": [65]}' + padding
            for path in ("/v1/completions", "/v1/cache/explain"):
                answer = service.client.post(path, content=body, headers={"content-type": "application/json"})
                assert answer.status_code == 200
            assert [what for what, _ in threads] == ["decode", "convert"] * 2
            assert {thread.name == "http" for _, thread in threads} == {in_loop}
            threads.clear()


def test_what_a_response_refers_to_is_converted_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []
    convert = request.chat_prompt

    def recorded(body: ResponsesRequest, seal: Seal) -> ChatPrompt:
        threads.append(threading.current_thread())
        return convert(body, seal)

    large = [{"type": "web_search_call", "x": "x" * LARGE_BYTES}, {"role": "user", "content": "x"}]
    monkeypatch.setattr(request, "chat_prompt", recorded)
    with fake_service(FakeOptions(reply=reply_with("ok"))) as service:
        first = service.client.post("/v1/responses", json={"input": large}).json()
        second = service.client.post("/v1/responses", json={"input": "y", "previous_response_id": first["id"]})
    assert second.status_code == 200
    assert len(threads) == 2
    assert all(thread.name != "http" for thread in threads)
