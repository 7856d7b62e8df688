"""Requests by the admin's API: what is told of them while they wait, run and after, and cancelling them."""

from collections.abc import Iterator
from concurrent.futures import Future

import pytest

from adapters.fake.options import FakeOptions
from domain.ids import SequenceId
from domain.scheduling.step_values import StepLimits
from tests.support.browser.admin_api import LONG, cancel, complete, only_open, read
from tests.support.http.clients import RawClient
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.gate import Gate

ONE_AT_A_TIME = StepLimits(max_batch=1, prefill_budget=256, grid=256)


class TestRequests:
    @pytest.fixture
    def gate(self) -> Gate:
        return Gate("prefill", 1)

    @pytest.fixture
    def service(self, gate: Gate) -> Iterator[FakeService]:
        with fake_service(FakeOptions(eos_every=0, hook=gate)) as running:
            yield running

    def test_one_that_runs_tells_how_far_it_is(self, service: FakeService, gate: Gate) -> None:
        client = RawClient(service.base_url, "/v1/completions", {"prompt": LONG, "max_tokens": 2})
        gate.wait_until_reached()
        service.clock.advance(2)
        found = only_open(service, lambda told: told["done_tokens"] == 256)
        assert (found["stage"], found["prompt_tokens"], found["output_tokens"]) == ("prefill", 700, 0)
        assert (found["operation"], found["priority"], found["model"]) == (
            "createCompletion",
            "interactive",
            DEFAULT_MODEL,
        )
        assert (found["age_s"], found["times"]["prefill_s"], found["end"]) == (2.0, 2.0, None)
        assert read(service, f"requests/{found['id']}")["id"] == found["id"]
        gate.open()
        client.read_until(b'"usage"')
        (ended,) = read(service, "requests")["ended"]
        assert (ended["id"], ended["output_tokens"], ended["end"]["reason"]) == (found["id"], 2, "length")
        client.leave()

    @pytest.mark.parametrize("stream", [False, True])
    def test_anybodys_request_is_cancelled_and_its_client_gets_the_error(
        self, service: FakeService, gate: Gate, stream: bool
    ) -> None:
        client = RawClient(service.base_url, "/v1/completions", {"prompt": LONG, "stream": stream})
        gate.wait_until_reached()
        id = only_open(service)["id"]
        assert cancel(service, id).json() == {"object": "cairn.cancelled", "id": id}
        gate.open()
        answer = client.read_until(b"cancelled").lower()
        assert b"retry-after" not in answer  # SDKs would ask again by themselves
        assert stream or b"x-should-retry: false" in answer
        service.wait_until_idle()
        (ended,) = read(service, "requests")["ended"]
        assert (ended["id"], ended["end"]["reason"]) == (id, "cancelled")
        assert cancel(service, id).status_code == 404
        client.leave()

    def test_one_that_waits_for_its_model_is_seen_and_cancelled(self) -> None:
        loads = Future[None]()
        with fake_service(FakeOptions(load_waits_for=loads)) as service:
            client = RawClient(service.base_url, "/v1/completions", {"prompt": LONG, "n": 2})
            service.wait_until(lambda: read(service, "requests")["preparing_count"] == 1, "it to wait for its model")
            told = read(service, "requests")
            (waiting,) = told["preparing"]
            assert (waiting["waits_for"], waiting["choices"], waiting["operation"]) == ("model", 2, "createCompletion")
            assert told["open"] == []
            assert read(service, "overview")["requests"]["waiting"] == 2
            assert cancel(service, waiting["id"]).status_code == 200
            answer = client.read_until(b"request_cancelled").lower()
            assert answer.startswith(b"http/1.1 503")
            assert b"x-should-retry: false" in answer
            assert b"retry-after" not in answer
            assert read(service, "requests")["preparing"] == []
            assert read(service, "overview")["requests"]["waiting"] == 0
            loads.set_result(None)
            client.leave()

    @pytest.mark.parametrize(("what", "operation"), [("explain", "explainCache"), ("warm", "warmCache")])
    def test_what_is_asked_of_the_cache_is_seen_and_cancelled_too(self, what: str, operation: str) -> None:
        loads = Future[None]()
        with fake_service(FakeOptions(load_waits_for=loads)) as service:
            client = RawClient(service.base_url, f"/v1/cache/{what}", {"prompt": LONG})
            service.wait_until(lambda: read(service, "requests")["preparing_count"] == 1, "it to wait for its model")
            (waiting,) = read(service, "requests")["preparing"]
            assert (waiting["waits_for"], waiting["operation"]) == ("model", operation)
            assert cancel(service, waiting["id"]).status_code == 200
            client.read_until(b"request_cancelled")
            assert read(service, "requests")["preparing"] == []
            loads.set_result(None)
            client.leave()

    def test_one_choice_of_several(self, service: FakeService, gate: Gate) -> None:
        body = {"prompt": LONG, "n": 2, "stream": True, "max_tokens": 9}
        client = RawClient(service.base_url, "/v1/completions", body)
        gate.wait_until_reached()
        told = [one["id"] for one in read(service, "requests")["open"]]
        assert told[1] == f"{told[0]}.1"
        assert cancel(service, told[1]).status_code == 200
        gate.open()
        client.read_until(b"cancelled")
        service.wait_until_idle()
        reasons = {one["id"]: one["end"]["reason"] for one in read(service, "requests")["ended"]}
        assert reasons[told[1]] == "cancelled"
        client.leave()

    def test_what_waits_says_for_what(self) -> None:
        gates = [Gate("prefill", 0), Gate("prefill", 1)]

        def hook(operation: str, sequence: SequenceId | None, count: int) -> None:
            for gate in gates:
                gate(operation, sequence, count)

        with fake_service(FakeOptions(eos_every=0, hook=hook), limits=ONE_AT_A_TIME) as service:
            clients = list[RawClient]()
            for number in range(2):
                clients.append(RawClient(service.base_url, "/v1/completions", {"prompt": LONG, "max_tokens": 1}))
                service.wait_until(lambda: read(service, "requests")["open_count"] > number, "it to be open")  # noqa: B023
                gates[0].wait_until_reached()
            gates[0].open()
            gates[1].wait_until_reached()  # this step was planned with both
            service.wait_until(
                lambda: read(service, "requests")["open"][1]["waits_for"] == "place", "what it waits for to be told"
            )
            first, second = read(service, "requests")["open"]
            assert (first["waits_for"], second["stage"], second["done_tokens"]) == (None, "queue", 0)
            assert read(service, "overview")["requests"]["waiting_for"] == {"place": 1}
            gates[1].open()
            for client in clients:
                client.read_until(b'"usage"')
                client.leave()

    def test_unknown_ids_are_404_and_short(self, service: FakeService) -> None:
        for response in (
            service.client.get("/admin/api/requests/nobody"),
            cancel(service, "nobody"),
            cancel(service, "n" * 5000),
        ):
            assert (response.status_code, response.json()["error"]["code"]) == (404, "not_found")
            assert len(response.text) < 500

    @pytest.mark.parametrize("value", ["-1", "257", "x", ""])
    def test_how_many_that_ended_is_bounded(self, service: FakeService, value: str) -> None:
        error = read(service, f"requests?ended={value}", 400)["error"]
        assert (error["param"], error["message"][:6]) == ("ended", "ended:")

    def test_the_last_that_ended_come_first(self, service: FakeService) -> None:
        ids = [complete(service, "x") for _ in range(3)]
        told = read(service, "requests?ended=2")
        assert [one["id"] for one in told["ended"]] == [ids[2], ids[1]]
        assert (told["open"], told["open_count"]) == ([], 0)

    def test_the_slowest_come_with_the_time_of_each_stage(self) -> None:
        def takes_time(operation: str, _sequence: SequenceId | None, _count: int) -> None:
            if operation == "prefill":
                service.clock.advance(1)

        with fake_service(FakeOptions(eos_every=0, hook=takes_time), reuses=True) as service:
            quick, slow = complete(service, "a short one"), complete(service, LONG * 3)
            assert read(service, "requests")["slowest"] == []
            told = read(service, "requests?ended=1&slowest=20")["slowest"]
            assert [one["id"] for one in told] == [slow, quick]
            assert told[0]["times"]["ttft_s"] > told[1]["times"]["ttft_s"] >= 0
            assert told[0]["explanation"]["divergence"] is None
            assert complete(service, LONG * 3) != slow
            again = read(service, "requests?slowest=20")["slowest"][-1]
            assert again["times"]["restore_s"] >= 0
            assert (told[0]["times"]["restore_s"], read(service, "requests?slowest=21", 400)["error"]["param"]) == (
                None,
                "slowest",
            )
