"""Bodies that are small on the wire and large in memory."""

import threading

import pytest

from adapters.fake.options import FakeOptions, reply_with
from interfaces.http.answering.dialect import Dialects
from interfaces.http.incoming.json_body import LARGE_BYTES, body_decoder
from tests.support.http.fake_service import fake_service
from tests.support.http.telegraph import PATH, Send, Telegram, Telegraph


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


def test_large_bodies_are_decoded_beside_the_event_loop() -> None:
    threads: list[threading.Thread] = []
    decoder = body_decoder(Telegram)

    def recorded(raw: bytes) -> Telegram:
        threads.append(threading.current_thread())
        return decoder(raw)

    class Recorded(Send):
        decoder = staticmethod(recorded)

    class Recording(Telegraph):
        operations = (Recorded(),)

    with fake_service(FakeOptions(reply=reply_with("ok")), dialects=Dialects([Recording()])) as service:
        for padding in ("", " " * LARGE_BYTES):
            body = '{"telegram": "x"}' + padding
            answer = service.client.post(PATH, content=body, headers={"content-type": "application/json"})
            assert answer.status_code == 200
        small, large = threads
        assert small.name == "http"
        assert large is not small
