"""The official `openai` package and plain HTTP get vectors and scores of small random models, whose files are as their
publishers leave them; `embedding_clients.py` does the same with other packages."""

import math
from collections.abc import Iterator

import httpx
import openai
import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.mlx.tiny_embedders import embedder_folder, reranker_folder
from tests.support.patience import PATIENCE_S

EMBEDDER, RERANKER = "tiny/Qwen3-Embedding", "tiny/Qwen3-Reranker"
TEXTS = ["A bird sings.", "Some fish swim far away.", "x" * 700]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveService]:
    folder = tmp_path_factory.mktemp("models")
    for name in (EMBEDDER, RERANKER):
        (folder / name).mkdir(parents=True)
    embedder_folder(folder / EMBEDDER)
    reranker_folder(folder / RERANKER)
    settings = Settings(
        server=ServerSettings(port=0),
        model=ModelSettings(default=EMBEDDER, dirs=(str(folder),), download=False),
        engine=EngineSettings(backend="mlx"),
        store=StoreSettings(kind="off"),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        with live_service(settings) as running:
            yield running


@pytest.fixture
def client(live: LiveService) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.base_url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S) as made:
        yield made


def test_vectors_by_openais_client(client: openai.OpenAI) -> None:
    """It asks for base64 unless it is told not to."""
    answer = client.embeddings.create(model=EMBEDDER, input=TEXTS)
    vectors = [one.embedding for one in answer.data]
    assert all(math.isclose(sum(number**2 for number in vector), 1, rel_tol=1e-5) for vector in vectors)
    for index, text in enumerate(TEXTS):  # alone, as numbers, and the long one from the cache
        alone = client.embeddings.create(model=EMBEDDER, input=text, encoding_format="float")
        assert alone.data[0].embedding == pytest.approx(vectors[index], abs=1e-5)
        assert alone.usage.total_tokens == alone.usage.prompt_tokens > len(text.split())
    short = client.embeddings.create(model=EMBEDDER, input=TEXTS[0], dimensions=32).data[0].embedding
    scale = math.sqrt(sum(number**2 for number in vectors[0][:32]))
    assert short == pytest.approx([number / scale for number in vectors[0][:32]], abs=1e-5)


def test_a_chat_and_an_unknown_length_are_errors_that_name_the_field(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot generate: it can embed"):
        client.chat.completions.create(model=EMBEDDER, messages=[{"role": "user", "content": "Hello"}])
    with pytest.raises(openai.BadRequestError, match="dimensions is 65, and tiny/Qwen3-Embedding makes 32 to 64"):
        client.embeddings.create(model=EMBEDDER, input="a", dimensions=65)


def test_documents_are_ranked_and_a_query_is_computed_once(live: LiveService) -> None:
    body = {"model": RERANKER, "query": "Who sings?", "documents": TEXTS}
    with httpx.Client(base_url=live.base_url, timeout=PATIENCE_S) as client:
        ranked = client.post("/v1/rerank", json=body).raise_for_status().json()
        pairs = {"model": RERANKER, "text_1": body["query"], "text_2": TEXTS}
        scores = [one["score"] for one in client.post("/score", json=pairs).raise_for_status().json()["data"]]
    assert [one["index"] for one in ranked["results"]] == sorted(range(3), key=lambda index: -scores[index])
    assert [one["relevance_score"] for one in ranked["results"]] == pytest.approx(
        sorted(scores, reverse=True), abs=1e-5
    )
    assert all(0 < score < 1 for score in scores)
    assert ranked["usage"]["prompt_tokens_details"]["cached_tokens"] > 100  # instruction and query, once more
