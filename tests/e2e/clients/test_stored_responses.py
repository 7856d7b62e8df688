"""Stored responses: the official `openai` package creates, retrieves, lists, goes on from and deletes them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest

from adapters.fake.options import FakeOptions
from domain.client import Client
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service, headers, keyed_service
from tests.support.patience import PATIENCE_S

SALT = "x-cairn-cache-salt"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}, {"role": "developer", "content": "Be brief."}]


@contextmanager
def client_of(base_url: str, **headers: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{base_url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S, default_headers=headers
    ) as made:
        yield made


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(FakeOptions(eos_every=0)) as running:
        yield running


@pytest.fixture
def client(service: FakeService) -> Iterator[openai.OpenAI]:
    with client_of(service.base_url) as made:
        yield made


def ask(client: openai.OpenAI, input: Any = "Hello", **fields: Any) -> Any:
    return client.responses.create(model=DEFAULT_MODEL, input=input, max_output_tokens=4, **fields)


def texts(client: openai.OpenAI, id: str, **fields: Any) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for item in client.responses.input_items.list(id, **fields):
        assert item.type == "message"
        found.append((item.role, "".join(part.text for part in item.content)))  # type: ignore[union-attr]
    return found


def test_a_response_is_retrieved_as_it_was_answered(client: openai.OpenAI) -> None:
    made = ask(client, metadata={"a": "b"}, instructions="Be brief.")
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()


def test_a_streamed_response_is_kept_too(client: openai.OpenAI) -> None:
    *_, last = ask(client, stream=True)
    assert client.responses.retrieve(last.response.id).to_dict() == last.response.to_dict()


def test_store_false_leaves_nothing(service: FakeService, client: openai.OpenAI) -> None:
    before = service.client.get("/v1/cache/stats").json()["documents"]
    for stream in (False, True):
        made = ask(client, store=False, stream=stream)
        id = list(made)[-1].response.id if stream else made.id
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(id)
        with pytest.raises(openai.BadRequestError):
            ask(client, previous_response_id=id)
    assert service.client.get("/v1/cache/stats").json()["documents"] == before


def test_what_is_deleted_is_gone(service: FakeService, client: openai.OpenAI) -> None:
    before = service.client.get("/v1/cache/stats").json()["documents"]["documents"]
    made = ask(client)
    assert client.responses.delete(made.id) is None
    for use in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as refused:
            use(made.id)
        assert refused.value.param == "response_id"
    assert service.client.get("/v1/cache/stats").json()["documents"]["documents"] == before


def test_a_conversation_goes_on_from_a_response(service: FakeService, client: openai.OpenAI) -> None:
    first = ask(client, HELLO)
    second = ask(client, "And then?", previous_response_id=first.id)
    third = ask(client, "And at last?", previous_response_id=second.id)
    assert (second.previous_response_id, first.previous_response_id) == (first.id, None)
    whole = [
        *HELLO,
        *(item.to_dict() for item in first.output),
        {"role": "user", "content": "And then?"},
        *(item.to_dict() for item in second.output),
        {"role": "user", "content": "And at last?"},
    ]
    sent_whole = ask(client, whole)
    assert third.usage.input_tokens == sent_whole.usage.input_tokens
    assert second.usage.input_tokens < third.usage.input_tokens
    body = {"input": "And at last?", "previous_response_id": second.id}
    told = service.client.post("/v1/cache/explain", json=body).json()["prompts"][0]
    assert told["prompt_tokens"] == third.usage.input_tokens


def test_instructions_and_tools_are_not_carried_on(client: openai.OpenAI) -> None:
    tool: Any = {"type": "function", "name": "read", "parameters": {"type": "object"}, "strict": False}
    plain = ask(client)
    told = ask(client, instructions="Speak like a pirate, at length.", tools=[tool])
    assert told.usage.input_tokens > plain.usage.input_tokens
    after = [ask(client, "More", previous_response_id=one.id).usage.input_tokens for one in (plain, told)]
    assert after[0] == after[1]


def test_a_missing_response_has_openai_s_code(client: openai.OpenAI) -> None:
    first = ask(client)
    second = ask(client, previous_response_id=first.id)
    client.responses.delete(first.id)
    for id, missing in (("resp-nobody", "resp-nobody"), (second.id, first.id)):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, previous_response_id=id)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
        assert missing in refused.value.message
    assert client.responses.retrieve(second.id).id == second.id
    assert texts(client, second.id) == [("user", "Hello")]


def test_input_items_come_in_pages(client: openai.OpenAI) -> None:
    first = ask(client, HELLO)
    second = ask(client, "And then?", previous_response_id=first.id)
    ascending = [("user", "Hello"), ("developer", "Be brief."), ("assistant", first.output_text), ("user", "And then?")]
    assert texts(client, second.id, order="asc") == ascending
    assert texts(client, second.id) == ascending[::-1]
    page = client.responses.input_items.list(second.id, limit=3)
    assert page.has_more
    ids = [item.id for item in page.data]
    assert ids[-1] is not None
    raw = page.to_dict()
    assert (raw["object"], raw["first_id"], raw["last_id"]) == ("list", ids[0], ids[-1])
    assert texts(client, second.id, after=ids[-1]) == [("user", "Hello")]
    assert len(texts(client, second.id, limit=1)) == 4
    for fields in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "nobody"}):
        with pytest.raises(openai.BadRequestError):
            client.responses.input_items.list(second.id, **fields)  # type: ignore[arg-type]


def test_input_items_of_every_kind_are_read_by_the_official_models(client: openai.OpenAI) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"}
    custom = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "x"}
    items: list[Any] = [
        *HELLO,
        {"type": "reasoning", "id": "rs_1", "summary": []},
        call,
        {"type": "function_call_output", "call_id": "c1", "output": "done"},
        custom,
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
        {"role": "assistant", "content": "Well."},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Well?"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Go on"}]},
    ]
    made = ask(client, items)
    listed = list(client.responses.input_items.list(made.id, order="asc"))
    assert [item.type for item in listed] == ["message"] * 2 + [item["type"] for item in items[2:7]] + ["message"] * 3
    assert all(item.id for item in listed)
    assert len({item.id for item in listed}) == len(listed)


def test_items_are_referred_to_by_their_ids(client: openai.OpenAI) -> None:
    first = ask(client)
    reference = {"type": "item_reference", "id": first.output[0].id}
    user = {"role": "user", "content": "Go on"}
    by_id = ask(client, [*HELLO, reference, user])
    whole = ask(client, [*HELLO, first.output[0].to_dict(), user])
    assert by_id.usage.input_tokens == whole.usage.input_tokens
    for id in ("msg_resp-nobody_0", "nonsense", f"{first.output[0].id}0"):
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, [*HELLO, {"type": "item_reference", "id": id}, user])
        assert refused.value.param == "input[2].id"


def test_an_error_in_a_later_input_names_its_own_place(client: openai.OpenAI) -> None:
    first = ask(client, HELLO)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, [{"role": "user", "content": "x"}, {"type": "function_call"}], previous_response_id=first.id)
    assert refused.value.param == "input[1].call_id"


def test_nobody_reads_another_s(service: FakeService) -> None:
    with client_of(service.base_url) as nobody, client_of(service.base_url, **{SALT: "alice"}) as alice:
        by_header = ask(alice)
        by_body = ask(nobody, extra_body={"cache_salt": "alice"})
        for id in (by_header.id, by_body.id):
            assert alice.responses.retrieve(id).id == id
            assert ask(alice, previous_response_id=id).previous_response_id == id
            for use in (nobody.responses.retrieve, nobody.responses.delete, nobody.responses.input_items.list):
                with pytest.raises(openai.NotFoundError):
                    use(id)
            with pytest.raises(openai.BadRequestError):
                ask(nobody, previous_response_id=id)
        mine = ask(nobody)
        with pytest.raises(openai.NotFoundError):
            alice.responses.retrieve(mine.id)


def test_a_response_that_was_left_is_not_kept(service: FakeService) -> None:
    before = service.client.get("/v1/cache/stats").json()["documents"]["documents"]
    body = {"input": "Hello", "stream": True, "max_output_tokens": 4000}
    with service.client.stream("POST", "/v1/responses", json=body) as response:
        created = next(line for line in response.iter_lines() if line.startswith("data: "))
    service.wait_until_idle()
    id = json.loads(created.removeprefix("data: "))["response"]["id"]
    assert service.client.get(f"/v1/responses/{id}").status_code == 404
    assert service.client.get("/v1/cache/stats").json()["documents"]["documents"] == before


def test_keys_keep_each_other_s_responses_apart() -> None:
    clients = (Client("alice", admin=True), Client("bob"), Client("carol", salt="carol's"))
    with keyed_service(*clients) as service:

        def status(name: str, id: str, **more: str) -> int:
            sent = {**headers(name), **more}
            listed = service.client.get(f"/v1/responses/{id}/input_items", headers=sent).status_code
            found = service.client.get(f"/v1/responses/{id}", headers=sent).status_code
            body = {"input": "More", "previous_response_id": id, "max_output_tokens": 1}
            went_on = service.client.post("/v1/responses", json=body, headers=sent).status_code
            assert (listed, went_on) == ((200, 200) if found == 200 else (404, 400))
            return found

        names = [client.name for client in clients]
        for name in names:
            body = {"input": "Hello", "max_output_tokens": 1, "cache_salt": "s"}
            id = service.client.post("/v1/responses", json=body, headers=headers(name)).json()["id"]
            told = [status(other, id, **{SALT: "s"}) for other in names]
            assert told == [200 if other == name else 404 for other in names]
            assert status(name, id) == 404
        cleared = service.client.post("/v1/cache/clear", json={"salt": "s"}, headers=headers("alice")).json()
        # alice's and bob's, who have no salt of their own, each with its second; three documents each
        assert cleared["documents"] == 4 * 3
