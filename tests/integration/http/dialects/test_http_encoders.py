"""Encoders over a socket, from their files to JSON: vectors, scores, and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from domain.byte_size import ByteSize
from tests.support.http.servers.live_service import live_service
from tests.support.mlx.encoder_reference import Reference
from tests.support.mlx.pooled_models import tokenizer_of
from tests.support.mlx.tiny_encoders import encoder_folder
from tests.support.patience import PATIENCE_S

EMBEDDER, RERANKER, UNPOOLED, LONG = "tiny/all-MiniLM", "tiny/bge-reranker", "tiny/unknown", "tiny/bge-m3"
TEXTS = ["The quick brown fox", "What is the code of Alice?", "the quick brown fox", "naïve café, don't stop! " * 8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    encoder_folder(folder / EMBEDDER, "bert")
    encoder_folder(folder / RERANKER, "xlm-roberta", scores=True)
    encoder_folder(folder / UNPOOLED, "modernbert", mode="")
    encoder_folder(folder / LONG, "xlm-roberta", max_position_embeddings=8194)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=EMBEDDER, dirs=(str(folder),), download=False),
        engine=EngineSettings(backend="mlx", memory=ByteSize(2 << 30)),
        store=StoreSettings(kind="off"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with live_service(settings) as live, httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as made:
            yield made


def post(client: httpx.Client, path: str, status: int = 200, **body: Any) -> dict[str, Any]:
    response = client.post(path, json=body)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


@pytest.mark.exact
def test_vectors(client: httpx.Client, folder: Path) -> None:
    tokenizer, reference = tokenizer_of(folder / EMBEDDER), Reference(folder / EMBEDDER)
    (start,), (end,) = tokenizer.ends
    rows = [[start, *tokenizer.encode_part(text), end] for text in TEXTS]
    body = post(client, "/v1/embeddings", model=EMBEDDER, input=TEXTS)
    for one, row in zip(body["data"], rows, strict=True):
        mean = reference.states(row).mean(axis=0)
        np.testing.assert_allclose(one["embedding"], mean / np.linalg.norm(mean), atol=1e-5)
    usage = body["usage"]
    assert usage["prompt_tokens"] == sum(map(len, rows))
    assert usage["prompt_tokens_details"]["cached_tokens"] == len(rows[0])  # which is there twice, in lower case


@pytest.mark.exact
def test_scores(client: httpx.Client, folder: Path) -> None:
    tokenizer, reference = tokenizer_of(folder / RERANKER), Reference(folder / RERANKER)
    query, encode = "Who is it?", tokenizer.encode_part
    (start,), (end,) = tokenizer.ends
    rows = [[start, *encode(query), end, end, *encode(text), end] for text in TEXTS]
    expected = [1 / (1 + np.exp(-reference.output(row))) for row in rows]
    scored = post(client, "/v1/score", model=RERANKER, text_1=query, text_2=TEXTS)
    np.testing.assert_allclose([one["score"] for one in scored["data"]], expected, atol=1e-5)
    ranked = post(client, "/v1/rerank", model=RERANKER, query=query, documents=TEXTS)["results"]
    assert [one["index"] for one in ranked] == sorted(range(len(TEXTS)), key=lambda at: -scored["data"][at]["score"])
    refused = post(client, "/v1/rerank", 400, model=RERANKER, query=query, documents=["a"], instruction="Find it")
    assert refused["error"]["param"] == "instruction"


def test_the_list_of_models_knows_them(client: httpx.Client) -> None:
    listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert listed[EMBEDDER]["capabilities"] == ["embed"]
    assert listed[RERANKER]["capabilities"] == ["score"]
    assert UNPOOLED not in listed
    shown = listed[EMBEDDER]["cairn"]
    assert shown["context_length"] == 160
    assert shown["prefix_reuse_note"] == "it keeps no state between tokens"


@pytest.mark.parametrize(
    ("path", "body", "param", "message"),
    [
        ("/v1/embeddings", {"model": EMBEDDER, "input": ["a", "fox " * 300]}, "input[1]", "takes 160"),
        ("/v1/embeddings", {"model": UNPOOLED, "input": "a"}, "model", "nothing says how it is pooled"),
        ("/v1/embeddings", {"model": RERANKER, "input": "a"}, "model", "it can score"),
        ("/v1/completions", {"model": EMBEDDER, "prompt": "a"}, "model", "it can embed"),
    ],
)
def test_refused(client: httpx.Client, path: str, body: dict[str, Any], param: str, message: str) -> None:
    error = post(client, path, 400, **body)["error"]
    assert error["param"] == param
    assert message in error["message"]


def test_a_text_whose_scores_do_not_fit_in_memory_is_refused_before_the_work(client: httpx.Client) -> None:
    tokens = [[9] * length for length in (7, 8000)]
    error = post(client, "/v1/embeddings", 400, model=LONG, input=tokens)["error"]
    assert error["param"] == "input"
    assert "input has 8000 tokens" in error["message"]
    fits = error["memory"]["largest_prompt_tokens"]
    assert 1000 < fits < 8000
    assert len(post(client, "/v1/embeddings", model=LONG, input=[[9] * (fits // 2)])["data"]) == 1


def test_a_text_is_cut_where_that_is_asked_for(client: httpx.Client) -> None:
    body = post(client, "/api/embed", model=EMBEDDER, input="fox " * 300)
    assert body["prompt_eval_count"] == 160
