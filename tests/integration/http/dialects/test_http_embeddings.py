"""Vectors and scores over a socket, in every dialect: the values, their order, the tokens that were computed for them,
and what is refused."""

import json
import struct
from base64 import b64decode
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest

from adapters.fake.engine import FakeModels
from adapters.fake.model import FakeModel
from adapters.fake.options import VECTOR_SIZE, FakeOptions
from adapters.memory.block_store import MemoryBlockStore
from application.events import PrefillChunkComputed
from domain.errors import ComputeFailed
from domain.id_row import IdRow
from domain.ids import ModelId, SequenceId
from domain.models.capability import Capability, ModelUse, Pooling
from domain.models.model_card import ModelSource
from domain.models.rerank import query_text
from tests.support.http.clients import RawClient
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service
from tests.support.processes.gate import Gate

MODEL, RERANKER, OPTIONS = "toy-embed", "toy-rerank", FakeOptions()
USES = {
    MODEL: ModelUse(frozenset({Capability.EMBED}), size=VECTOR_SIZE, least=2),
    RERANKER: ModelUse(frozenset({Capability.SCORE})),
}
MODELS = FakeModels((DEFAULT_MODEL, MODEL, RERANKER), USES)
QUERY = "Which of these birds can fly backwards, and how do its wings move?"


@pytest.fixture(scope="module")
def service() -> Iterator[FakeService]:
    with fake_service(by_model={MODEL: OPTIONS, RERANKER: OPTIONS}, models=MODELS, reuses=True) as running:
        yield running


def post(service: FakeService, path: str, **body: Any) -> dict[str, Any]:
    response = service.client.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def refused(service: FakeService, path: str, **body: Any) -> httpx.Response:
    response = service.client.post(path, json={"model": MODEL, **body})
    assert response.status_code == 400, response.text
    return response


def values(texts: Sequence[str | Sequence[int]], pooling: Pooling = Pooling()) -> list[list[float]]:  # noqa: B008
    """The toy's own values of whole texts."""
    toy = FakeModel(ModelSource(ModelId(MODEL), "toy"), OPTIONS)
    toy.open(SequenceId(1))
    rows = [IdRow(text.encode() if isinstance(text, str) else text) for text in texts]
    return [list(struct.unpack(f"<{len(found) // 4}f", found)) for found in toy.pool(SequenceId(1), rows, pooling)]


def scores(query: str, documents: Sequence[str], instruction: str | None = None) -> list[float]:
    whole = [f"{query_text(query, instruction)} {document}" for document in documents]
    return [found for (found,) in values(whole, Pooling(score_ids=(1, 2)))]


def num_computed(service: FakeService) -> int:
    """Prompt tokens that were ever prefilled, without rows."""
    chunks = service.events.of("PrefillChunkComputed")
    return sum(chunk.end - chunk.start for chunk in chunks if isinstance(chunk, PrefillChunkComputed))


TEXTS = ["a bird", "another bird that is longer", "x" * 700, "a bird", "ü"]


class TestOpenAI:
    def test_each_text_has_its_vector_in_order_whatever_is_beside_it(self, service: FakeService) -> None:
        body = post(service, "/v1/embeddings", input=TEXTS)
        assert [one["embedding"] for one in body["data"]] == values(TEXTS)
        assert [(one["object"], one["index"]) for one in body["data"]] == [("embedding", n) for n in range(len(TEXTS))]
        assert (body["object"], body["model"]) == ("list", MODEL)
        num_tokens = sum(len(text.encode()) for text in TEXTS)
        assert (body["usage"]["prompt_tokens"], body["usage"]["total_tokens"]) == (num_tokens, num_tokens)
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == len("a bird")  # which is there twice

    @pytest.mark.parametrize(
        ("given", "texts"),
        [
            ("one", ["one"]),
            ([65, 66], [[65, 66]]),
            ([[65, 66], [67]], [[65, 66], [67]]),
            (["one", [65]], ["one", [65]]),
        ],
    )
    def test_texts_are_strings_or_token_ids(self, service: FakeService, given: Any, texts: list[Any]) -> None:
        data = post(service, "/v1/embeddings", input=given)["data"]
        assert [one["embedding"] for one in data] == values(texts)

    def test_base64_holds_the_same_numbers(self, service: FakeService) -> None:
        (one,) = post(service, "/v1/embeddings", input="a bird", encoding_format="base64")["data"]
        assert list(struct.unpack(f"<{VECTOR_SIZE}f", b64decode(one["embedding"]))) == values(["a bird"])[0]

    def test_dimensions(self, service: FakeService) -> None:
        (one,) = post(service, "/v1/embeddings", input="a", dimensions=3)["data"]
        assert [one["embedding"]] == values(["a"], Pooling(dimensions=3))

    @pytest.mark.parametrize(
        ("field", "body"),
        [
            ("input", {}),
            ("input", {"input": []}),
            ("input[1]", {"input": ["a", ""]}),
            ("input[1]", {"input": ["a", []]}),
            ("input[0]", {"input": [[65, -1]]}),
            ("input[1]", {"input": ["a", 65]}),
            ("input[0]", {"input": [[65, 260]]}),
            ("input", {"input": ["a"] * 2049}),
            ("input[1]", {"input": ["a", "x" * 40_000]}),
            ("dimensions", {"input": "a", "dimensions": 1}),
            ("dimensions", {"input": "a", "dimensions": 0}),
            ("encoding_format", {"input": "a", "encoding_format": "int8"}),
        ],
    )
    def test_what_is_wrong_is_named(self, service: FakeService, field: str, body: dict[str, Any]) -> None:
        error = refused(service, "/v1/embeddings", **body).json()["error"]
        assert error["param"] == field
        assert field in error["message"]


class TestOllama:
    def test_embed(self, service: FakeService) -> None:
        body = post(service, "/api/embed", input=["a", "bb"], model=f"{MODEL}:latest")
        assert body["embeddings"] == values(["a", "bb"])
        assert (body["model"], body["prompt_eval_count"]) == (f"{MODEL}:latest", 3)
        assert body["total_duration"] >= body["load_duration"] >= 0
        assert post(service, "/api/embed", input="a", dimensions=2)["embeddings"] == values(
            ["a"], Pooling(dimensions=2)
        )

    def test_embed_cuts_what_is_too_long_unless_truncate_is_false(self, service: FakeService) -> None:
        long = "x" * (OPTIONS.context_length + 1)
        assert post(service, "/api/embed", input=long)["prompt_eval_count"] == OPTIONS.context_length
        assert (
            f"input[0] has at least {len(long)} tokens"
            in refused(service, "/api/embed", input=long, truncate=False).json()["error"]
        )

    @pytest.mark.parametrize("texts", [[], ""])
    def test_no_texts_have_no_vectors_and_load_the_model(self, texts: object) -> None:
        with fake_service(by_model={MODEL: OPTIONS}, models=MODELS) as service:
            body = post(service, "/api/embed", input=texts)
            assert (body["embeddings"], body["prompt_eval_count"]) == ([], 0)
            assert body["total_duration"] >= body["load_duration"] >= 0
            assert [one.description.id for one in service.engine.loaded] == [MODEL]
            assert post(service, "/api/embeddings", prompt="", keep_alive=0) == {"embedding": []}
            service.wait_until(lambda: not service.engine.loaded, "the model to be unloaded")

    def test_the_older_route(self, service: FakeService) -> None:
        assert post(service, "/api/embeddings", prompt="a") == {"embedding": values(["a"])[0]}


class TestRerank:
    documents = tuple(f"document {number}" for number in range(5))

    @pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
    def test_the_most_relevant_documents_come_first(self, service: FakeService, path: str) -> None:
        expected = sorted(enumerate(scores(QUERY, self.documents)), key=lambda one: -one[1])
        sent = {"model": RERANKER, "query": QUERY, "documents": self.documents}
        results = post(service, path, **sent)["results"]
        assert [(one["index"], one["relevance_score"]) for one in results] == expected
        assert [one["document"] for one in results] == [{"text": self.documents[index]} for index, _ in expected]
        few = post(service, path, **sent, top_n=2)["results"]
        assert few == results[:2]

    def test_documents_may_be_objects_and_may_be_left_out_of_the_answer(self, service: FakeService) -> None:
        sent = {"model": RERANKER, "query": QUERY, "documents": self.documents}
        objects = [{"text": text, "title": "x"} if at % 2 else text for at, text in enumerate(self.documents)]
        results = post(service, "/v1/rerank", **sent)["results"]
        assert (
            post(service, "/v1/rerank", **{**sent, "documents": objects, "rank_fields": ["text"]})["results"] == results
        )
        bare = post(service, "/v1/rerank", **sent, return_documents=False)["results"]
        assert bare == [{name: one[name] for name in ("index", "relevance_score")} for one in results]
        assert post(service, "/v1/rerank", **sent, return_documents=True)["results"] == results

    def test_an_instruction_says_what_is_relevant(self, service: FakeService) -> None:
        body = post(service, "/v1/rerank", model=RERANKER, query="q", documents=["d"], instruction="Find pets")
        assert [body["results"][0]["relevance_score"]] == scores("q", ["d"], "Find pets") != scores("q", ["d"])

    @pytest.mark.parametrize("path", ["/score", "/v1/score"])
    def test_pairs_have_scores_in_their_order(self, service: FakeService, path: str) -> None:
        body = post(service, path, model=RERANKER, text_1="q", text_2=self.documents)
        assert [(one["index"], one["score"]) for one in body["data"]] == [*enumerate(scores("q", self.documents))]
        (one,) = post(service, path, model=RERANKER, text_1="q", text_2="a")["data"]
        assert [one["score"]] == scores("q", ["a"])

    @pytest.mark.parametrize(
        ("path", "field", "body"),
        [
            ("/v1/rerank", "query", {"documents": ["a"]}),
            ("/v1/rerank", "documents", {"query": "q", "documents": []}),
            ("/v2/rerank", "documents[1]", {"query": "q", "documents": ["a", "x" * 40_000]}),
            ("/v1/rerank", "documents[0].text", {"query": "q", "documents": [{"title": "a"}]}),
            ("/v1/rerank", "rank_fields", {"query": "q", "documents": ["a"], "rank_fields": ["title"]}),
            ("/v2/rerank", "top_n", {"query": "q", "documents": ["a"], "top_n": 0}),
            ("/score", "text_2", {"text_1": "a", "text_2": []}),
        ],
    )
    def test_what_is_wrong_is_named(self, service: FakeService, path: str, field: str, body: dict[str, Any]) -> None:
        assert refused(service, path, model=RERANKER, **body).json()["error"]["param"] == field


class TestReuse:
    def test_fifty_documents_compute_their_query_once_and_the_next_fifty_never(self, service: FakeService) -> None:
        query = f"{QUERY} " * 8
        num_shared = len(query_text(query, None))
        for group, num_prefilled in (("first", num_shared), ("second", 0)):
            documents = [f"{group} {number:02}" for number in range(50)]
            num_rest = sum(len(f" {document}") for document in documents)
            before = num_computed(service)
            body = post(service, "/v1/rerank", model=RERANKER, query=query, documents=documents, cache_salt="fifty")
            assert [one["relevance_score"] for one in body["results"]] == sorted(scores(query, documents), reverse=True)
            usage = body["usage"]
            assert usage["prompt_tokens"] == 50 * num_shared + num_rest
            assert usage["prompt_tokens_details"]["cached_tokens"] == 50 * num_shared - num_prefilled
            assert num_computed(service) - before == num_prefilled + num_rest

    def test_salts_share_nothing(self, service: FakeService) -> None:
        document = "A document of one tenant, which no other one may have. " * 30
        for salt in ("one", "two"):
            usage = post(service, "/v1/embeddings", input=document, cache_salt=salt)["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] == 0


def test_what_is_computed_is_not_stored() -> None:
    with fake_service(by_model={MODEL: OPTIONS}, models=MODELS, reuses=True, store=MemoryBlockStore(None)) as service:
        post(service, "/v1/embeddings", input="what it says. " * 60)
        service.wait_until_idle()
        service.client.post("/v1/completions", json={"prompt": "what it says. " * 60, "max_tokens": 1})
        service.wait_until(lambda: bool(service.events.of("RecordsPersisted")), "the records of the completion")
        assert {event.id[:5] for event in service.events.of("RecordsPersisted")} == {"cmpl-"}


class TestCapabilities:
    def test_a_model_is_refused_what_it_cannot_do(self, service: FakeService) -> None:
        chat = {"messages": [{"role": "user", "content": "Hello"}]}
        refusal = refused(service, "/v1/chat/completions", **chat).json()["error"]
        assert refusal["message"] == f"model {MODEL} cannot generate: it can embed; name another model"
        assert refusal["param"] == "model"
        for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/rerank", {"query": "q", "documents": ["a"]})):
            error = refused(service, path, **{**body, "model": DEFAULT_MODEL}).json()["error"]
            assert "it can generate; name another model" in error["message"]

    def test_lists_of_models_say_what_each_can_do(self, service: FakeService) -> None:
        post(service, "/v1/embeddings", input="a")  # loads it
        listed = {one["id"]: one for one in service.client.get("/v1/models").json()["data"]}
        assert listed[MODEL]["embedding_size"] == VECTOR_SIZE
        can = {name: one["capabilities"] for name, one in listed.items()}
        assert can == {MODEL: ["embed"], RERANKER: ["score"], DEFAULT_MODEL: ["generate"]}
        tags = {one["name"]: one["capabilities"] for one in service.client.get("/api/tags").json()["models"]}
        assert tags == {
            MODEL: ["embedding"],
            RERANKER: ["rerank"],
            DEFAULT_MODEL: ["completion", "tools", "thinking"],
        }
        assert post(service, "/api/show")["capabilities"] == ["embedding"]


def test_requests_are_reported_as_embeddings_with_all_their_tokens(service: FakeService) -> None:
    post(service, "/v1/embeddings", input=["one", "three"], service_tier="flex")
    service.wait_until_idle()
    queued: Any = service.events.of("RequestQueued")[-1]
    assert (queued.kind.value, queued.operation, queued.priority) == ("embeddings", "createEmbedding", "batch")
    assert queued.num_prompt_tokens == len("onethree")
    ended: Any = service.events.of("RequestEnded")[-1]
    assert (ended.id, ended.reason, ended.usage.prompt_tokens) == (queued.id, "stop", len("onethree"))


def test_many_long_texts_are_computed_a_few_at_a_time(service: FakeService) -> None:
    texts = [f"{number:02}" * 130 for number in range(70)]  # more than the queue has places
    assert [one["embedding"] for one in post(service, "/v1/embeddings", input=texts)["data"]] == values(texts)


def test_a_client_that_leaves_ends_its_request() -> None:
    gate = Gate("pool", 0)
    options = FakeOptions(hook=gate)
    with fake_service(by_model={MODEL: options}, models=MODELS) as service:
        body = {"model": MODEL, "input": [f"{number:02}" * 300 for number in range(20)]}
        client = RawClient(service.base_url, "/v1/embeddings", body)
        gate.wait_until_reached()
        client.leave()
        service.wait_until(lambda: service.requests.num_read == 0, "the server to notice that its client left")
        gate.open()
        service.wait_until_idle()
        assert (gate.num_calls("pool"), service.requests.num_waiting) == (1, 0)
        assert json.loads(service.client.post("/v1/embeddings", json={"model": MODEL, "input": "a"}).content)["data"]


def test_a_text_that_cannot_be_computed_ends_its_request_and_no_other() -> None:
    failing = iter([True])

    def hook(operation: str, _sequence: SequenceId | None, _count: int) -> None:
        if operation == "pool" and next(failing, False):
            raise ComputeFailed("broken row")

    texts = [f"{number:02}" * 300 for number in range(20)]
    options = FakeOptions(hook=hook)
    with fake_service(by_model={MODEL: options}, models=MODELS) as service:
        response = service.client.post("/v1/embeddings", json={"model": MODEL, "input": texts})
        assert (response.status_code, response.json()["error"]["code"]) == (500, "compute_failed")
        assert "broken row" in response.json()["error"]["message"]
        assert [one["embedding"] for one in post(service, "/v1/embeddings", input=texts)["data"]] == values(texts)
        service.wait_until_idle()
        assert service.requests.num_waiting == 0
