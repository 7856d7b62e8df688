"""POST /v1/rerank and /v2/rerank, documents in the order of their relevance to a query, as Jina and Cohere have them;
and POST /score and /v1/score, the scores of pairs of texts, as vLLM has them."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from application.use_cases.embed import PooledTexts
from domain.errors import InvalidRequest, require
from domain.models.capability import Capability
from domain.request.pooling import PooledPrompt, Pooling
from domain.request.request import GenerationRequest
from interfaces.http.answering.dialect import PooledOperation
from interfaces.http.errors import ErrorBody, Problem, openai_error
from interfaces.http.fields.parameters import mapped, refused, supported
from interfaces.http.fields.pooled_fields import PooledFields, PooledUsage, numbers
from interfaces.http.incoming.request_context import RequestContext


class RerankError(ErrorBody):
    """OpenAI's shape of an error, with the message where Cohere's clients read it."""

    message: str


def rerank_error(problem: Problem) -> RerankError:
    detail = openai_error(problem).error
    return RerankError(detail, detail.message)


class ScoreFields(PooledFields, kw_only=True):
    """The fields of every body for scores."""

    instruction: Annotated[
        str | None, supported("Cairn's own: what is relevant; without it, the model's own instruction")
    ] = None
    truncate_prompt_tokens: Annotated[
        Literal[-1] | None, mapped("-1: a document beyond the model's context is cut at its end, not refused")
    ] = None

    def scores(
        self, context: RequestContext, queries: tuple[str, ...], documents: tuple[str, ...], field: str
    ) -> GenerationRequest:
        """Returns the request of a body. `field`: that of the documents. Raises InvalidRequest."""
        truncates = self.truncate_prompt_tokens is not None
        pooling = Pooling(Capability.SCORE)
        prompt = PooledPrompt(documents, pooling, queries, self.instruction, truncates=truncates, field=field)
        return self.request(context, "score", prompt)


class DocumentText(Struct):
    """A document as an object."""

    text: str


class RerankRequest(ScoreFields, kw_only=True):
    """The body of POST /v1/rerank and /v2/rerank."""

    query: Annotated[str, supported("computed once for all documents")]
    documents: Annotated[list[str | DocumentText], supported('up to 2,048, each a string or `{"text": ...}`')]
    top_n: Annotated[int | None, supported("the most results")] = None
    return_documents: Annotated[bool | None, supported("true by default, as Jina has it")] = None
    rank_fields: Annotated[Any, refused("send each document as one text", [], ["text"])] = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(one if isinstance(one, str) else one.text for one in self.documents)


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


def _rerank(body: RerankRequest, context: RequestContext) -> GenerationRequest:
    require(body.top_n is None or body.top_n >= 1, "top_n", "must be at least 1")
    return body.scores(context, (body.query,), body.texts, "documents")


def _ranking(body: RerankRequest, request: GenerationRequest, pooled: PooledTexts) -> Ranking:
    has_documents = body.return_documents is not False
    ranked = [
        RankedDocument(index, numbers(value)[0], DocumentText(text) if has_documents else UNSET)
        for index, (value, text) in enumerate(zip(pooled.values, body.texts, strict=True))
    ]
    ranked.sort(key=lambda one: -one.relevance_score)
    return Ranking(request.id, request.model, ranked[: body.top_n], PooledUsage.of(pooled))


class ScoreRequest(ScoreFields, kw_only=True):
    """The body of POST /score and /v1/score."""

    text_1: Annotated[str | list[str], supported("a query, or one a text of `text_2`")]
    text_2: Annotated[str | list[str], supported("a document, or up to 2,048")]


class Score(Struct, tag_field="object", tag="score"):
    index: int
    score: float


class ScoreList(Struct, tag_field="object", tag="list"):
    id: str
    model: str
    data: list[Score]
    usage: PooledUsage


def _score(body: ScoreRequest, context: RequestContext) -> GenerationRequest:
    queries, documents = ((text,) if isinstance(text, str) else tuple(text) for text in (body.text_1, body.text_2))
    if len(queries) not in (1, len(documents)):
        raise InvalidRequest(
            f"text_1 has {len(queries)} texts and text_2 {len(documents)}: send one query, or one a document",
            param="text_1",
        )
    return body.scores(context, queries, documents, "text_2")


def _scores(_body: ScoreRequest, request: GenerationRequest, pooled: PooledTexts) -> ScoreList:
    data = [Score(index, numbers(value)[0]) for index, value in enumerate(pooled.values)]
    return ScoreList(request.id, request.model, data, PooledUsage.of(pooled))


RERANKING = (
    PooledOperation("/v1/rerank", "rerank", RerankRequest, Ranking, convert=_rerank, answer=_ranking),
    PooledOperation("/v2/rerank", "rerankV2", RerankRequest, Ranking, convert=_rerank, answer=_ranking),
    PooledOperation("/score", "score", ScoreRequest, ScoreList, convert=_score, answer=_scores),
    PooledOperation("/v1/score", "scoreV1", ScoreRequest, ScoreList, convert=_score, answer=_scores),
)
