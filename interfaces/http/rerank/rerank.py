"""POST /v1/rerank and /v2/rerank, documents in the order of their relevance to a query, as Jina and Cohere have them;
and POST /score and /v1/score, the scores of pairs of texts, as vLLM has them."""

from typing import Annotated, Any

from msgspec import UNSET, Struct, UnsetType

from application.use_cases.embed import PooledTexts
from domain.errors import InvalidRequest, require
from domain.models.capability import Capability
from domain.request.pooling import PooledPrompt, Pooling
from domain.request.request import GenerationRequest
from interfaces.http.errors import ErrorBody, Problem, openai_error
from interfaces.http.fields.parameters import refused, supported
from interfaces.http.fields.pooled_fields import PooledFields, PooledUsage, Truncation, numbers


class RerankError(ErrorBody):
    """OpenAI's shape of an error, with the message where Cohere's clients read it."""

    message: str


def rerank_error(problem: Problem) -> RerankError:
    detail = openai_error(problem).error
    return RerankError(detail, detail.message)


class DocumentText(Struct):
    """A document as an object."""

    text: str


class RankedDocument(Struct):
    """A document. `index`: its place in the request. `relevance_score`: from 0 to 1."""

    index: int
    relevance_score: float
    document: DocumentText | UnsetType = UNSET


class Ranking(Struct):
    """A ranking, the most relevant documents first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: PooledUsage


class Score(Struct, tag_field="object", tag="score"):
    index: int
    score: float


class ScoreList(Struct, tag_field="object", tag="list"):
    id: str
    model: str
    data: list[Score]
    usage: PooledUsage


class ScoreFields(PooledFields, kw_only=True):
    """The fields of every body for scores."""

    prefix = "score"

    instruction: Annotated[
        str | None, supported("Cairn's own: what is relevant; without it, the model's own instruction")
    ] = None
    truncate_prompt_tokens: Truncation = None

    def pairs(self, queries: tuple[str, ...], documents: tuple[str, ...], field: str) -> PooledPrompt:
        """Returns the texts. `field`: that of the documents. Raises InvalidRequest."""
        truncates, pooling = self.truncate_prompt_tokens is not None, Pooling(Capability.SCORE)
        return PooledPrompt(documents, pooling, queries, self.instruction, truncates=truncates, field=field)


class RerankRequest(ScoreFields, kw_only=True):
    """The body of POST /v1/rerank and /v2/rerank."""

    query: Annotated[str, supported("computed once for all documents")]
    documents: Annotated[list[str | DocumentText], supported('up to 2,048, each a string or `{"text": ...}`')]
    top_n: Annotated[int | None, supported("the most results")] = None
    return_documents: Annotated[bool | None, supported("true by default, as Jina has it")] = None
    rank_fields: Annotated[Any, refused("send each document as one text", [], ["text"])] = None

    def prompt(self) -> PooledPrompt:
        require(self.top_n is None or self.top_n >= 1, "top_n", "must be at least 1")
        return self.pairs((self.query,), tuple(map(_text, self.documents)), "documents")

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> Ranking:
        ranked = [RankedDocument(index, numbers(value)[0]) for index, value in enumerate(pooled.values)]
        ranked.sort(key=lambda one: -one.relevance_score)
        if self.return_documents is not False:
            for one in ranked:
                one.document = DocumentText(_text(self.documents[one.index]))
        return Ranking(request.id, request.model, ranked[: self.top_n], PooledUsage.of(pooled))


class ScoreRequest(ScoreFields, kw_only=True):
    """The body of POST /score and /v1/score."""

    text_1: Annotated[str | list[str], supported("a query, or one a text of `text_2`")]
    text_2: Annotated[str | list[str], supported("a document, or up to 2,048")]

    def prompt(self) -> PooledPrompt:
        queries, documents = ((text,) if isinstance(text, str) else tuple(text) for text in (self.text_1, self.text_2))
        if len(queries) not in (1, len(documents)):
            raise InvalidRequest(
                f"text_1 has {len(queries)} texts and text_2 {len(documents)}: send one query, or one a document",
                param="text_1",
            )
        return self.pairs(queries, documents, "text_2")

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> ScoreList:
        data = [Score(index, numbers(value)[0]) for index, value in enumerate(pooled.values)]
        return ScoreList(request.id, request.model, data, PooledUsage.of(pooled))


def _text(document: str | DocumentText) -> str:
    return document if isinstance(document, str) else document.text
