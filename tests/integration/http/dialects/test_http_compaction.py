"""Compaction over a socket, on the toy engine: the route, the trigger, the threshold, and what goes on from them."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizer
from domain.client import Client
from interfaces.http.responses.compaction import INSTRUCTION, OPENING
from tests.support.http.official import answer_problem
from tests.support.http.servers.fake_service import FakeService, fake_service, headers, keyed_service
from tests.support.telemetry.named_events import named_events
from tests.unit.interfaces.http.test_open_responses import problems

PATH, COMPACT = "/v1/responses", "/v1/responses/compact"
SUMMARY = "The fox is red."
TRIGGER = {"type": "compaction_trigger"}
READ = FakeTokenizer()


def reply(prompt_ids: Sequence[int]) -> Sequence[int]:
    """A summary where one is asked for; else what was read of earlier ones, and of what they replaced."""
    text = READ.decode(prompt_ids)
    if INSTRUCTION in text:
        return tuple(SUMMARY.encode())
    read = [name for name, mark in (("summary", OPENING + SUMMARY), ("answer", "It was red.")) if mark in text]
    return tuple(f"read {', '.join(read)}".encode())


OPTIONS = FakeOptions(reply=reply, context_length=8_000)
HISTORY: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Which colour?"},
    {"role": "assistant", "content": "It was red."},
]
NEXT = {"role": "user", "content": "And now?"}


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(OPTIONS, reuses=True) as running:
        yield running


def post(service: FakeService, path: str = PATH, status: int = 200, **body: Any) -> dict[str, Any]:
    response = service.client.post(path, json={"model": service.model, **body})
    assert response.status_code == status, response.text
    assert answer_problem("POST", path, status, response.content) == ""
    answer: dict[str, Any] = response.json()
    return answer


def text(answer: dict[str, Any]) -> str:
    return str(answer["output"][-1]["content"][0]["text"])


def streamed(service: FakeService, **body: Any) -> list[dict[str, Any]]:
    response = service.client.post(PATH, json={"model": service.model, "stream": True, **body})
    assert response.status_code == 200, response.text
    return named_events(response.text)


def test_a_compacted_conversation_goes_on(service: FakeService) -> None:
    made = post(service, COMPACT, input=HISTORY)
    assert problems(made, "CompactResource") == []
    assert [one.get("role", one["type"]) for one in made["output"]] == ["developer", "user", "compaction"]
    assert made["output"][1]["content"] == [{"type": "input_text", "text": "Which colour?"}]
    assert SUMMARY not in str(made)
    assert text(post(service, input=[*made["output"], NEXT])) == "read summary"
    assert text(post(service, input=[*HISTORY, made["output"][-1], NEXT])) == "read summary"
    assert text(post(service, input=[*HISTORY, NEXT])) == "read answer"
    again = post(service, COMPACT, input=[*made["output"], NEXT])
    assert [one.get("role", one["type"]) for one in again["output"]] == ["developer", "user", "user", "compaction"]


def test_a_stored_conversation_is_compacted_by_its_id(service: FakeService) -> None:
    first = post(service, input="Which colour?")
    made = post(service, COMPACT, previous_response_id=first["id"])
    assert [one.get("role", one["type"]) for one in made["output"]] == ["user", "compaction"]
    assert service.client.get(f"{PATH}/{made['id']}").status_code == 404


def test_a_missing_model_is_refused(service: FakeService) -> None:
    refused = service.client.post(COMPACT, json={"input": HISTORY})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "model")
    assert post(service, COMPACT, 400, input=[])["error"]["param"] == "input[0]"


def test_a_stream_with_a_trigger_is_one_item_to_go_on_from(service: FakeService) -> None:
    """As codex compacts at its built-in provider: exactly one item is done, and the response is completed."""
    events = streamed(service, input=[*HISTORY, TRIGGER], tools=[{"type": "function", "name": "read"}], store=True)
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [one["type"] for one in done] == ["compaction"]
    assert events[-1]["type"] == "response.completed"
    assert text(post(service, input=[*HISTORY[:2], *done, NEXT])) == "read summary"
    last = events[-1]["response"]
    assert text(post(service, input=[NEXT], previous_response_id=last["id"])) == "read summary"
    reference = {"type": "item_reference", "id": done[0]["id"]}
    assert text(post(service, input=[*HISTORY, reference, NEXT])) == "read summary"
    whole = post(service, input=[*HISTORY, TRIGGER])
    assert [one["type"] for one in whole["output"]] == ["compaction"]


def test_a_stream_without_a_summary_fails_so_that_codex_repeats_it() -> None:
    with fake_service(FakeOptions(reply=lambda _ids: ())) as service:
        last = streamed(service, input=[*HISTORY, TRIGGER])[-1]
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "server_error")
        refused = service.client.post(COMPACT, json={"model": service.model, "input": HISTORY})
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "compute_failed")


def test_only_its_model_and_tenant_read_it() -> None:
    clients = (Client("alice"), Client("bob"), Client("carol", salt="carol's"))
    with keyed_service(*clients, options=OPTIONS) as service:

        def ask(path: str, name: str, **body: Any) -> Any:
            sent = {"model": service.model, **body}
            return service.client.post(path, json=sent, headers=headers(name))

        made = ask(COMPACT, "alice", input=HISTORY, cache_salt="s").json()["output"]
        for name, salt in (("alice", "s"), ("bob", "s")):
            assert text(ask(PATH, name, input=[*made, NEXT], cache_salt=salt).json()) == "read summary"
        for name, salt in (("alice", "t"), ("alice", None), ("carol", "s")):
            refused = ask(PATH, name, input=[*made, NEXT], cache_salt=salt)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "input[2].encrypted_content"


class TestThresholds:
    """The history has some 130 tokens of the toy's, the summary's message 250."""

    def managed(self, threshold: int) -> dict[str, Any]:
        edits = [{"type": "compaction", "compact_threshold": threshold}]
        return {"input": [*HISTORY, NEXT], "context_management": edits}

    def test_below_it_nothing_changes(self, service: FakeService) -> None:
        num_tokens = post(service, input=[*HISTORY, NEXT])["usage"]["input_tokens"]
        below = post(service, **self.managed(num_tokens + 1))
        assert text(below) == "read answer"
        assert [one["type"] for one in below["output"]] == ["message"]
        at = post(service, **self.managed(num_tokens))
        assert [one["type"] for one in at["output"]] == ["compaction", "message"]

    @pytest.mark.parametrize("stream", [False, True])
    def test_above_it_the_answer_begins_with_the_item(self, service: FakeService, stream: bool) -> None:
        body = self.managed(10)
        made = streamed(service, **body)[-1]["response"] if stream else post(service, **body)
        assert [one["type"] for one in made["output"]] == ["compaction", "message"]
        assert text(made) == "read summary"
        assert service.client.get(f"{PATH}/{made['id']}").json()["output"] == made["output"]
        went_on = post(service, input=[*body["input"], *made["output"], NEXT])
        assert text(went_on) == "read summary"
        chained = post(service, input=[NEXT], previous_response_id=made["id"])
        assert text(chained) == "read summary"
        assert went_on["usage"]["input_tokens"] == chained["usage"]["input_tokens"]

    def test_what_has_no_answer_yet_is_not_compacted(self, service: FakeService) -> None:
        edits = [{"type": "compaction", "compact_threshold": 1}]
        made = post(service, input=HISTORY[:2], context_management=edits)
        assert [one["type"] for one in made["output"]] == ["message"]
        compacted = post(service, **self.managed(1))["output"][0]
        once = post(service, input=[*HISTORY, NEXT, compacted], context_management=edits)
        assert [one["type"] for one in once["output"]] == ["message"]

    def test_what_is_counted_and_explained_is_not_compacted(self, service: FakeService) -> None:
        num_requests = len(service.events.of("RequestQueued"))
        counted = post(service, f"{PATH}/input_tokens", **self.managed(1))
        assert counted["input_tokens"] == post(service, f"{PATH}/input_tokens", input=[*HISTORY, NEXT])["input_tokens"]
        service.client.post("/v1/cache/explain", json=self.managed(1)).raise_for_status()
        assert len(service.events.of("RequestQueued")) == num_requests
