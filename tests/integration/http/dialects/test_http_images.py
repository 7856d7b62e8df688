"""Images in requests of every dialect, over a socket, on the toy model that sees."""

from collections.abc import Iterator
from typing import Any

import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.options import FakeOptions, reply_with
from adapters.fake.vision import ToyImages, toy_image
from domain.errors import InvalidRequest
from tests.support.http.images import (
    CAT,
    CAT_TOKENS,
    DOG,
    DOG_TOKENS,
    SHOWING,
    Showing,
    anthropic_block,
    data_url,
    openai_part,
    responses_part,
)
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.picture_images import Processors

BLIND = "fake-hybrid"
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    options = FakeOptions(reply=reply_with("I see."), images=ToyImages(), context_length=2_000)
    models = FakeModels(seeing=[DEFAULT_MODEL])
    with fake_service(options, models=models, images=Processors(ToyImages()), reuses=True) as running:
        yield running


def post(service: FakeService, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = service.client.post(path, json=body)
    assert response.status_code == status, response.text
    answer: dict[str, Any] = response.json()
    return answer


def each_dialect() -> Any:
    return pytest.mark.parametrize("dialect", SHOWING.values(), ids=SHOWING.keys())


@each_dialect()
def test_an_image_counts_as_its_tokens(service: FakeService, dialect: Showing) -> None:
    def num_tokens(data: bytes) -> int:
        return dialect.prompt_tokens(post(service, dialect.path, dialect.body(data, "what is it?")))

    assert num_tokens(DOG) - num_tokens(CAT) == DOG_TOKENS - CAT_TOKENS


def test_the_same_image_in_another_dialect_is_the_same_prompt(service: FakeService) -> None:
    asked = "What do you see here, in every dialect the same?" * 8
    for number, dialect in enumerate(SHOWING.values()):
        response = service.client.post(dialect.path, json=dialect.body(CAT, asked))
        assert response.status_code == 200, response.text
        reused = int(response.headers["x-cairn-cache"].partition("reused=")[2].partition(";")[0])
        assert reused > 256 if number else reused == 0, dialect.path


@each_dialect()
def test_a_broken_image_is_refused_by_its_name(service: FakeService, dialect: Showing) -> None:
    told = post(service, dialect.path, dialect.body(b"no image", "what is it?"), 400)
    assert dialect.field in str(told)
    assert "no toy image" in str(told)


@each_dialect()
def test_a_model_that_reads_text_only_says_so_and_what_to_do(service: FakeService, dialect: Showing) -> None:
    body = {**dialect.body(CAT, "what is it?"), "model": BLIND}
    told = str(post(service, dialect.path, body, 400))
    assert f"{dialect.field}: {BLIND} cannot see images: it reads text only; name a model" in told
    assert ("images_unseen" in told) == (dialect.path in (CHAT, RESPONSES)), "other dialects have no codes"


NOTE = "[image left out: this model reads text only]"


def test_a_model_that_reads_text_only_reads_a_note_in_a_conversation(service: FakeService) -> None:
    shown = {"role": "user", "content": [{"type": "text", "text": "look"}, openai_part(CAT)]}
    later = [shown, {"role": "assistant", "content": "yes"}, shown]
    text = post(service, "/apply-template", {"model": BLIND, "messages": later})["prompt"]
    assert text.count(f"<|start|>user\nlook\n{NOTE}<|end|>") == 2
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [anthropic_block(CAT)]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}
    body = {"model": BLIND, "max_tokens": 9, "messages": [call, {"role": "user", "content": [result]}]}
    num_left_out = post(service, f"{MESSAGES}/count_tokens", body)["input_tokens"]
    result["content"] = [{"type": "text", "text": NOTE}]
    assert post(service, f"{MESSAGES}/count_tokens", body)["input_tokens"] == num_left_out


def test_a_broken_image_in_a_result_or_behind_an_answer_ends_no_session(service: FakeService) -> None:
    broken = {"role": "user", "content": [openai_part(b"no image")]}
    answered = [broken, {"role": "assistant", "content": "hm"}, {"role": "user", "content": "and?"}]
    text = post(service, "/apply-template", {"messages": answered})["prompt"]
    assert "user\n[image left out: it is no toy image" in text
    told = post(service, CHAT, {"messages": [*answered, {"role": "assistant", "content": "b"}, broken]}, 400)
    assert told["error"]["param"] == "messages[4].content[0].image_url.url"
    result = {"type": "tool_result", "tool_use_id": "t1", "content": [anthropic_block(b"no image")]}
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]}
    post(service, MESSAGES, {"max_tokens": 9, "messages": [call, {"role": "user", "content": [result]}]})


def test_image_tokens_reuse_and_passes_of_the_tower_are_shown(service: FakeService) -> None:
    bird, num_tokens = toy_image(3, 5, "a bird").data, 3 * (5 + 1)
    body = SHOWING["chat"].body(bird, "How much of this is seen again? " * 20)
    first = post(service, CHAT, body)
    assert first["usage"]["prompt_tokens_details"]["image_tokens"] == num_tokens
    again = post(service, CHAT, {**body, "n": 2})
    assert again["usage"]["prompt_tokens_details"]["image_tokens"] == num_tokens
    assert (
        "image_tokens"
        not in post(service, CHAT, {"messages": [{"role": "user", "content": "hi"}]})["usage"]["prompt_tokens_details"]
    )
    response = post(service, RESPONSES, SHOWING["responses"].body(bird, "and here?"))
    assert response["usage"]["input_tokens_details"]["image_tokens"] == num_tokens
    images = {id: service.client.get(f"/admin/api/requests/{id}").json()["images"] for id in (first["id"], again["id"])}
    assert images[again["id"]]["reused_tokens"] == num_tokens
    assert images[again["id"]]["seen"] == 0
    assert images[first["id"]]["tokens"] == num_tokens
    assert images[first["id"]]["seen"] == 1


def test_an_explanation_names_the_image_that_differs(service: FakeService) -> None:
    parts = [{"type": "text", "text": "Compare these two."}, openai_part(CAT), openai_part(DOG)]
    text = {"type": "text", "text": "Which is larger?" * 20}
    body = {"messages": [{"role": "user", "content": [*parts, text]}]}
    post(service, CHAT, body)
    other = [*parts[:2], openai_part(CAT), text]
    [found] = post(service, "/v1/cache/explain", {"messages": [{"role": "user", "content": other}]})["prompts"]
    assert found["sentence"].startswith("From token 32 on image 2 of the prompt differs")
    assert found["divergence"]["before"].endswith("two.[image]")


def test_a_stored_response_keeps_its_images(service: FakeService) -> None:
    asked = {"role": "user", "content": [responses_part(CAT), {"type": "input_text", "text": "what is it?"}]}
    first = post(service, RESPONSES, {"input": [asked]})
    then = {"role": "user", "content": "and now?"}
    chained = post(service, RESPONSES, {"input": [then], "previous_response_id": first["id"]})
    whole = post(service, RESPONSES, {"input": [asked, *first["output"], then]})
    assert chained["usage"]["input_tokens"] == whole["usage"]["input_tokens"]
    items = service.client.get(f"{RESPONSES}/{first['id']}/input_items").json()["data"]
    assert items[0]["content"][0]["image_url"] == data_url(CAT)


@pytest.mark.parametrize(
    ("image_url", "problem"),
    [
        ({"url": "data:image/png;base64,%%%"}, "is not base64"),
        ({"url": "data:image/png,abc"}, "must be a data URL like data:image/png;base64"),
        ({"url": "file:///etc/passwd"}, "must be a data URL"),
        ({"url": "https://example.org/a.png"}, "example.org is not listed in server.image_hosts; send a data URL"),
        ("cat.png", "must be a data URL"),
    ],
)
def test_what_is_no_image_is_refused_by_its_name(service: FakeService, image_url: Any, problem: str) -> None:
    part = {"type": "image_url", "image_url": image_url}
    error = post(service, CHAT, {"messages": [{"role": "user", "content": [part]}]}, 400)["error"]
    assert error["param"].startswith("messages[0].content[0].image_url")
    assert problem in error["message"]


def test_an_image_of_an_allowed_host_is_fetched_and_is_the_image_that_it_holds() -> None:
    asked: list[tuple[str, int]] = []

    def fetch(url: str, field: str, max_bytes: int) -> bytes:
        asked.append((url, max_bytes))
        if "gone" in url:
            raise InvalidRequest(f"{field}: the image was not fetched: gone", param=field)
        return CAT

    def shown(url: str) -> dict[str, Any]:
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    options, models = FakeOptions(images=ToyImages()), FakeModels(seeing=[DEFAULT_MODEL])
    with fake_service(options, models=models, images=Processors(ToyImages()), fetch=fetch, reuses=True) as service:
        sent = post(service, "/tokenize", {"messages": [{"role": "user", "content": [openai_part(CAT)]}]})
        url = "https://images.example/cat.png"
        assert post(service, "/tokenize", {"messages": [shown(url)]})["tokens"] == sent["tokens"]
        post(service, "/tokenize", {"messages": [shown(url), {"role": "assistant", "content": "a"}, shown(f"{url}?2")]})
        assert asked[1:] == [(url, 64 << 20), (f"{url}?2", (64 << 20) - len(CAT))]
        gone = shown("https://images.example/gone.png")
        assert (
            post(service, CHAT, {"messages": [gone]}, 400)["error"]["param"] == "messages[0].content[0].image_url.url"
        )
        later = [gone, {"role": "assistant", "content": "hm"}, {"role": "user", "content": "and?"}]
        text = post(service, "/apply-template", {"messages": later})["prompt"]
        assert "[image left out: the image was not fetched: gone]" in text


def test_too_many_images_are_refused(service: FakeService) -> None:
    body = {"messages": [{"role": "user", "content": [openai_part(CAT)] * 257}]}
    error = post(service, CHAT, body, 400)["error"]
    assert (error["param"], error["message"]) == (
        "messages",
        "messages hold 257 images, at most 256 are allowed: leave out the oldest",
    )


def test_capabilities_are_listed(service: FakeService) -> None:
    models = {one["id"]: one["capabilities"] for one in service.client.get("/v1/models").json()["data"]}
    assert models[DEFAULT_MODEL] == ["generate", "see"]
    assert models[BLIND] == ["generate"]
    assert "vision" in post(service, "/api/show", {"model": DEFAULT_MODEL})["capabilities"]
    assert "vision" not in post(service, "/api/show", {"model": BLIND})["capabilities"]
