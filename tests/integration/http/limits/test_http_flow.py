"""Keep-alive comments, a full queue, and consumers slower than the model."""

from adapters.fake.options import FakeOptions, reply_with
from application.settings import ServerSettings
from domain.scheduling.step_values import StepLimits
from tests.support.http.clients import RawClient, completion_text, events
from tests.support.http.servers.fake_service import fake_service
from tests.support.processes.gate import Gate

PATH = "/v1/completions"
ONE_AT_A_TIME = StepLimits(max_batch=1, prefill_budget=256, grid=256)
IMPATIENT = ServerSettings(port=0, keepalive_s=0.05)


def test_a_silent_stream_says_how_far_the_prefill_is() -> None:
    gate = Gate("prefill", 2)
    with fake_service(FakeOptions(reply=reply_with("ok"), hook=gate), settings=IMPATIENT) as service:
        with service.client.stream("POST", PATH, json={"prompt": "x" * 2000, "stream": True}) as response:
            lines: list[str] = []
            for line in response.iter_lines():
                lines.append(line)
                if line == ": prefill 512/2000":
                    gate.open()
        transcript = "\n".join(lines) + "\n"
        assert ": prefill 512/2000" in lines
        assert completion_text(events(transcript)) == "ok"


def test_a_queued_stream_says_so() -> None:
    gate = Gate("decode", 1)
    options = FakeOptions(reply=reply_with("ok"), hook=gate)
    with fake_service(options, settings=IMPATIENT, limits=ONE_AT_A_TIME) as service:
        first = RawClient(service.base_url, PATH, {"prompt": "x", "stream": True})
        gate.wait_until_reached()
        second = RawClient(service.base_url, PATH, {"prompt": "y", "stream": True})
        second.read_until(b": queued\n\n")
        first.read_until(b": working\n\n")
        gate.open()
        for client in (first, second):
            client.read_until(b"data: [DONE]")
            client.leave()


def test_a_full_queue_is_503_with_retry_after_and_drains() -> None:
    gate = Gate("decode", 1)
    options = FakeOptions(reply=reply_with("ok"), hook=gate)
    with fake_service(options, limits=ONE_AT_A_TIME, max_queue=2) as service:
        running = RawClient(service.base_url, PATH, {"prompt": "a", "stream": True})
        gate.wait_until_reached()
        waiting = [RawClient(service.base_url, PATH, {"prompt": "b", "stream": True}) for _ in range(2)]
        service.wait_until(lambda: service.requests.num_read == 3, "both to be queued")
        for stream in (False, True):
            response = service.client.post(PATH, json={"prompt": "c", "stream": stream})
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert response.json()["error"]["code"] == "queue_full"
        gate.open()
        for client in (running, *waiting):
            client.read_until(b"data: [DONE]")
            client.leave()
        assert service.client.post(PATH, json={"prompt": "c"}).status_code == 200


def test_choices_that_do_not_all_fit_the_queue_leave_nothing_behind() -> None:
    gate = Gate("decode", 1)
    options = FakeOptions(reply=reply_with("ok"), hook=gate)
    with fake_service(options, limits=ONE_AT_A_TIME, max_queue=3) as service:
        running = RawClient(service.base_url, PATH, {"prompt": "a", "stream": True})
        gate.wait_until_reached()
        response = service.client.post(PATH, json={"prompt": "many", "n": 8})
        assert response.status_code == 503
        assert service.requests.num_read == 1
        gate.open()
        running.read_until(b"data: [DONE]")
        running.leave()
        service.wait_until_idle()
        assert service.client.post(PATH, json={"prompt": "few", "n": 2}).status_code == 200


def test_a_slow_consumer_stalls_nobody_and_misses_nothing() -> None:
    """The model runs on while the client does not read; what waited arrives merged, in fewer chunks than tokens."""
    num_tokens = 1_200
    with fake_service(FakeOptions(eos_every=0)) as service:
        body = {"prompt": "x", "temperature": 0, "max_tokens": num_tokens}
        expected = service.client.post(PATH, json=body).json()["choices"][0]["text"]
        slow = RawClient(service.base_url, PATH, {**body, "stream": True, "logprobs": 20}, receive_buffer_bytes=4096)
        slow.read_until(b"data: ")
        other = service.client.post(PATH, json={"prompt": "y", "max_tokens": 5})
        assert other.status_code == 200
        service.wait_until(lambda: len(service.events.of("RequestEnded")) == 3, "the model to finish")
        transcript = _body(slow.read_until(b"data: [DONE]\n\n"))
        slow.leave()
        chunks = events(transcript)
        assert completion_text(chunks) == expected
        assert len(chunks) < num_tokens


def _body(received: bytes) -> str:
    """Undo chunked transfer coding."""
    _, _, rest = received.partition(b"\r\n\r\n")
    body = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        length = int(size, 16)
        if length == 0 or len(rest) < length:
            break
        body += rest[:length]
        rest = rest[length + 2 :]
    return body.decode()
