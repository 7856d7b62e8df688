"""POST /v1/rerank and /v2/rerank, documents in the order of their relevance to a query, as Jina and Cohere have them;
and POST /score and /v1/score, the scores of texts, as vLLM has them."""

from struct import unpack
from typing import Annotated

from msgspec import UNSET, Struct, UnsetType

from application.use_cases.embed import PooledTexts
from domain.errors import require
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import refuse_unsupported, refused, supported
from interfaces.http.fields.pooled_body import PooledBody
from interfaces.http.openai.embeddings import PooledAnswer, PooledUsage


class DocumentText(Struct):
    text: str


class RankedDocument(Struct):
    """A document. `index`: its place in the request. `relevance_score`: from 0 to 1. `document`: left out where
    `return_documents` is false."""

    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class Ranking(PooledAnswer):
    """A ranking, the most relevant documents first."""

    results: list[RankedDocument]


class Score(Struct, tag_field="object", tag="score"):
    index: int
    score: float


class ScoreList(PooledAnswer, tag_field="object", tag="list"):
    data: list[Score]


class RerankRequest(PooledBody, kw_only=True):
    routes = (("/v1/rerank", "rerank"), ("/v2/rerank", "rerankV2"))

    query: Annotated[str, supported("computed once for all documents")]
    documents: Annotated[
        list[str | DocumentText], supported("up to 2,048: strings, or objects whose `text` counts and comes back")
    ]
    top_n: Annotated[int | None, supported("the most results")] = None
    return_documents: Annotated[bool | None, supported("true by default: the results have the texts")] = None
    rank_fields: Annotated[list[str] | None, refused("the `text` of a document counts", ["text"], [])] = None
    instruction: Annotated[
        str | None, supported("Cairn's own: what is relevant, in place of the model's own; cross-encoders take none")
    ] = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(one if isinstance(one, str) else one.text for one in self.documents)

    def prompt(self) -> PooledPrompt:
        require(self.top_n is None or self.top_n >= 1, "top_n", "must be at least 1")
        refuse_unsupported(self)
        return PooledPrompt(self.texts, self.query, self.instruction, field="documents")

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> Ranking:
        scored = enumerate(zip(pooled.values, self.texts, strict=True))
        ranked = [RankedDocument(at, unpack("<f", value)[0], DocumentText(text)) for at, (value, text) in scored]
        if self.return_documents is False:
            ranked = [RankedDocument(one.index, one.relevance_score) for one in ranked]
        ranked.sort(key=lambda one: -one.relevance_score)
        return Ranking(request.id, request.model, PooledUsage.of(pooled), ranked[: self.top_n])


class ScoreRequest(PooledBody, kw_only=True):
    routes = (("/score", "score"), ("/v1/score", "scoreV1"))

    text_1: Annotated[str, supported("a query")]
    text_2: Annotated[str | list[str], supported("a document, or up to 2,048")]

    def prompt(self) -> PooledPrompt:
        documents = (self.text_2,) if isinstance(self.text_2, str) else tuple(self.text_2)
        return PooledPrompt(documents, self.text_1, field="text_2")

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> ScoreList:
        data = [Score(index, unpack("<f", value)[0]) for index, value in enumerate(pooled.values)]
        return ScoreList(request.id, request.model, PooledUsage.of(pooled), data)
