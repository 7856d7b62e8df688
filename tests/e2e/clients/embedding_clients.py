"""Other official clients against a running server, by hand: they are in no dependency group.

    pip install cohere ollama litellm langchain-openai llama-index-embeddings-openai-like
    cairn serve EMBEDDER --model-dir DIR --port 8000
    python tests/e2e/clients/embedding_clients.py http://127.0.0.1:8000 EMBEDDER RERANKER

Each prints one line; one that is not installed is left out.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

TEXTS = ["A bird sings.", "Some fish swim far away."]
QUERY = "Who sings?"


def by_litellm(url: str, embedder: str, reranker: str) -> list[Any]:
    litellm: Any = import_module("litellm")
    found = litellm.embedding(model=f"openai/{embedder}", input=TEXTS, api_base=f"{url}/v1", api_key="none")
    rank = litellm.rerank
    ranked = rank(model=f"jina_ai/{reranker}", query=QUERY, documents=TEXTS, api_base=f"{url}/v1", api_key="none")
    ranked_too = rank(
        model=f"cohere/{reranker}", query=QUERY, documents=TEXTS, api_base=f"{url}/v2/rerank", api_key="none"
    )
    assert len(ranked.results) == len(ranked_too.results) == len(TEXTS)
    return [one["embedding"] for one in found.data]


def by_cohere(url: str, _embedder: str, reranker: str) -> list[Any]:
    cohere: Any = import_module("cohere")
    first, second = cohere.Client("none", base_url=url), cohere.ClientV2("none", base_url=url)
    old = first.rerank(model=reranker, query=QUERY, documents=TEXTS, top_n=2)
    new = second.rerank(model=reranker, query=QUERY, documents=TEXTS)
    assert [one.index for one in old.results] == [one.index for one in new.results]
    return [[one.relevance_score for one in new.results]]


def by_langchain(url: str, embedder: str, _reranker: str) -> list[Any]:
    made: Any = import_module("langchain_openai").OpenAIEmbeddings(
        model=embedder, base_url=f"{url}/v1", api_key="none", check_embedding_ctx_length=False
    )
    assert len(made.embed_query(QUERY)) > 1
    return list(made.embed_documents(TEXTS))


def by_llama_index(url: str, embedder: str, _reranker: str) -> list[Any]:
    llama_index: Any = import_module("llama_index.embeddings.openai_like")
    made = llama_index.OpenAILikeEmbedding(model_name=embedder, api_base=f"{url}/v1", api_key="none")
    return list(made.get_text_embedding_batch(TEXTS))


def by_ollama(url: str, embedder: str, _reranker: str) -> list[Any]:
    client: Any = import_module("ollama").Client(host=url)
    assert "embedding" in (client.show(embedder).capabilities or [])
    assert client.embeddings(model=embedder, prompt=TEXTS[0]).embedding
    return [*client.embed(model=embedder, input=TEXTS).embeddings]


CLIENTS: dict[str, Callable[[str, str, str], Sequence[Sequence[float]]]] = {
    "litellm": by_litellm,
    "cohere": by_cohere,
    "langchain_openai": by_langchain,
    "llama_index": by_llama_index,
    "ollama": by_ollama,
}

if __name__ == "__main__":
    for name, ask in CLIENTS.items():
        if find_spec(name) is not None:
            rows = [[round(number, 4) for number in row[:3]] for row in ask(*sys.argv[1:4])]
            sys.stdout.write(f"{name} {rows}\n")
