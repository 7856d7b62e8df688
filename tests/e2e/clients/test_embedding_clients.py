"""The official `openai` package and plain HTTP get vectors and scores of small random models, whose files are as their
publishers leave them; `embedding_clients.py` does the same with other packages."""

import math
import operator
from collections.abc import Iterator

import httpx
import openai
import pytest

from application.settings import EngineSettings, ModelSettings, ServerSettings, Settings, StoreSettings
from tests.support.http.servers.live_service import LiveService, live_service
from tests.support.mlx.tiny_embedders import embedder_folder, reranker_folder
from tests.support.patience import PATIENCE_S

EMBEDDER, RERANKER = "tiny/Qwen3-Embedding", "tiny/Qwen3-Reranker"
SUBJECTS = """\
The cat sat on the mat.
A kitten is resting on a rug.
My pet purrs when I stroke its fur.
The central bank raised interest rates.
Inflation made the bank increase the cost of borrowing.
Loans became more expensive after the decision on monetary policy.
It will rain heavily tomorrow.
The weather forecast predicts a storm.
Take an umbrella, the sky is full of clouds.
Boil the pasta for ten minutes.
The recipe says to cook the noodles in hot water.
Add salt to the soup and stir it in the pot.
How do I sort a list in Python?
list.sort() orders the items of a list in place.
Use sorted() to get a new sequence in ascending order.
The striker scored two goals in the match.
Our football team won the game.
The player kicked the ball into the net.
The physician examined the patient.
She went to hospital because of a fever.
The nurse gave him medicine for his illness.
The orchestra played a symphony.
He practises the violin every evening.
The singer's new song has a lovely melody.
The automobile needs a new engine.
He drove his car to the garage.
The vehicle's brakes and tires were replaced.
The judge sentenced the thief to prison.
The court found him guilty of the crime.
Her lawyer appealed against the verdict.
The rocket carried a satellite into orbit.
Astronauts travelled to the moon.
The telescope observes distant galaxies and stars.
Open the file and read its lines.
The program writes data to a file on disk.
Close the stream after the bytes have been read.
"""
"""Three sentences a subject, which share few words."""

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


@pytest.mark.exact
def test_vectors_by_openais_client(client: openai.OpenAI) -> None:
    """It asks for base64 unless a format is given."""
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


def test_sentences_about_one_thing_are_near_for_the_embedded_model(client: openai.OpenAI) -> None:
    """Its card has the exact shares; chance would be 2 of 36, and a half."""
    texts = SUBJECTS.splitlines()
    found = client.embeddings.create(model="cairn-demo-embed", input=texts)
    vectors = [one.embedding for one in found.data]
    near = [[sum(map(operator.mul, one, other)) for other in vectors] for one in vectors]
    is_same = [[at // 3 == other // 3 for other in range(len(texts))] for at in range(len(texts))]
    numbers = range(len(texts))
    others = [[(near[at][one], is_same[at][one]) for one in numbers if one != at] for at in numbers]
    assert sum(max(row)[1] for row in others) >= 20
    pairs = [pair for row in others for pair in row]
    nearer = [same > other for same, is_own in pairs if is_own for other, is_others in pairs if not is_others]
    assert sum(nearer) > 0.85 * len(nearer)


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
