"""POST /v1/embeddings: vectors of one or many texts, each a string or token ids."""

from base64 import b64encode
from typing import Annotated, Any, Literal

from msgspec import Struct

from application.use_cases.embed import PooledTexts
from domain.errors import InvalidRequest
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import ignored, supported
from interfaces.http.fields.pooled_body import Dimensions, PooledBody, as_json
from interfaces.http.openai.shared import PromptTokensDetails


class PooledUsage(Struct):
    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails

    @classmethod
    def of(cls, pooled: PooledTexts) -> "PooledUsage":
        return cls(pooled.num_tokens, pooled.num_tokens, PromptTokensDetails(pooled.num_cached))


class Embedding(Struct, tag_field="object", tag="embedding"):
    """The vector of one text: numbers, or base64."""

    index: int
    embedding: list[float] | str


class PooledAnswer(Struct):
    """The part that all answers have."""

    id: str
    model: str
    usage: PooledUsage


class EmbeddingList(PooledAnswer, tag_field="object", tag="list"):
    data: list[Embedding]


class EmbeddingRequest(PooledBody, kw_only=True):
    routes = (("/v1/embeddings", "createEmbedding"),)

    input: Annotated[
        str | list[str | int | list[int]],
        supported("a string, token ids, or a list of up to 2,048 of either; token ids stand as they are"),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, supported("`base64`: of little-endian float32 numbers")
    ] = None
    dimensions: Dimensions = None
    user: Annotated[Any, ignored("it is passed to no one")] = None

    def prompt(self) -> PooledPrompt:
        is_one = isinstance(self.input, str) or (bool(self.input) and isinstance(self.input[0], int))
        texts = [self.input] if is_one else self.input
        return PooledPrompt(tuple(map(_text, range(len(texts)), texts)), dimensions=self.dimensions)

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbeddingList:
        is_base64 = self.encoding_format == "base64"
        vectors = [b64encode(value).decode() if is_base64 else as_json(value) for value in pooled.values]
        data = [Embedding(index, vector) for index, vector in enumerate(vectors)]
        return EmbeddingList(request.id, request.model, PooledUsage.of(pooled), data)


def _text(index: int, given: object) -> str | IdRow:
    try:
        return given if isinstance(given, str) else IdRow(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        place = f"input[{index}]"
        message = f"{place} must be a string or a list of token ids (0 to {MAX_TOKEN_ID})"
        raise InvalidRequest(message, param=place) from None
