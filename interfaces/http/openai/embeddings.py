"""POST /v1/embeddings: vectors of one or many texts, each a string or token ids."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from application.use_cases.embed import PooledTexts
from domain.errors import InvalidRequest
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.models.capability import Capability
from domain.request.pooling import PooledPrompt, Pooling
from domain.request.request import GenerationRequest
from interfaces.http.answering.dialect import PooledOperation
from interfaces.http.fields.parameters import mapped, refused, supported
from interfaces.http.fields.pooled_fields import PooledFields, PooledUsage, as_base64, as_json
from interfaces.http.incoming.request_context import RequestContext


class EmbeddingRequest(PooledFields, kw_only=True):
    """The body of POST /v1/embeddings."""

    input: Annotated[
        str | list[str | int | list[int]],
        supported("a string, token ids, or a list of up to 2,048 of either; token ids stand as they are"),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, supported("`base64`: of little-endian float32 numbers")
    ] = None
    dimensions: Annotated[
        int | None, supported("the first numbers of each vector, normalised again, where the model was trained for it")
    ] = None
    prompt_name: Annotated[
        str | None, supported("the name of one of the model's own prompts (`query`, `document`), put before each text")
    ] = None
    truncate_prompt_tokens: Annotated[
        Literal[-1] | None, mapped("-1: a text beyond the model's context is cut at its end, not refused")
    ] = None
    input_type: Annotated[Any, refused("use `prompt_name`")] = None


class Embedding(Struct, tag_field="object", tag="embedding"):
    """The vector of one text: numbers, or base64."""

    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, tag_field="object", tag="list"):
    id: str
    model: str
    data: list[Embedding]
    usage: PooledUsage


def _convert(body: EmbeddingRequest, context: RequestContext) -> GenerationRequest:
    given = body.input
    is_one = isinstance(given, str) or (bool(given) and all(isinstance(item, int) for item in given))
    texts = [given] if is_one else given
    prompt = PooledPrompt(
        tuple(_text(text, "input" if is_one else f"input[{index}]") for index, text in enumerate(texts)),
        Pooling(Capability.EMBED, body.dimensions),
        prompt_name=body.prompt_name,
        truncates=body.truncate_prompt_tokens is not None,
    )
    return body.request(context, "embd", prompt)


def _text(given: object, field: str) -> str | IdRow:
    try:
        return given if isinstance(given, str) else IdRow(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        message = f"{field} must be a string or a list of token ids (0 to {MAX_TOKEN_ID})"
        raise InvalidRequest(message, param=field) from None


def _answer(body: EmbeddingRequest, request: GenerationRequest, pooled: PooledTexts) -> EmbeddingList:
    encoded = as_base64 if body.encoding_format == "base64" else as_json
    data = [Embedding(index, encoded(value)) for index, value in enumerate(pooled.values)]
    return EmbeddingList(request.id, request.model, data, PooledUsage.of(pooled))


EMBEDDINGS = PooledOperation(
    "/v1/embeddings", "createEmbedding", EmbeddingRequest, EmbeddingList, convert=_convert, answer=_answer
)
