"""POST /v1/embeddings: vectors of one or many texts, each a string or token ids."""

from base64 import b64encode
from typing import Annotated, Any, Literal

from msgspec import Struct

from application.use_cases.embed import PooledTexts
from domain.errors import InvalidRequest
from domain.id_row import MAX_TOKEN_ID, IdRow
from domain.models.capability import Capability
from domain.request.pooling import PooledPrompt, Pooling
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import refused, supported
from interfaces.http.fields.pooled_fields import Dimensions, PooledFields, PooledUsage, Truncation, as_json


class Embedding(Struct, tag_field="object", tag="embedding"):
    """The vector of one text: numbers, or base64."""

    index: int
    embedding: list[float] | str


class EmbeddingList(Struct, tag_field="object", tag="list"):
    id: str
    model: str
    data: list[Embedding]
    usage: PooledUsage


class EmbeddingRequest(PooledFields, kw_only=True):
    """The body of POST /v1/embeddings."""

    prefix = "embd"

    input: Annotated[
        str | list[str | int | list[int]],
        supported("a string, token ids, or a list of up to 2,048 of either; token ids stand as they are"),
    ]
    encoding_format: Annotated[
        Literal["float", "base64"] | None, supported("`base64`: of little-endian float32 numbers")
    ] = None
    dimensions: Dimensions = None
    prompt_name: Annotated[
        str | None, supported("the name of one of the model's own prompts (`query`, `document`), put before each text")
    ] = None
    truncate_prompt_tokens: Truncation = None
    input_type: Annotated[Any, refused("use `prompt_name`")] = None

    def prompt(self) -> PooledPrompt:
        given = self.input
        is_one = isinstance(given, str) or (bool(given) and all(isinstance(item, int) for item in given))
        texts = [given] if is_one else given
        return PooledPrompt(
            tuple(_text(text, "input" if is_one else f"input[{index}]") for index, text in enumerate(texts)),
            Pooling(Capability.EMBED, self.dimensions),
            prompt_name=self.prompt_name,
            truncates=self.truncate_prompt_tokens is not None,
        )

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbeddingList:
        is_base64 = self.encoding_format == "base64"
        vectors = [b64encode(value).decode() if is_base64 else as_json(value) for value in pooled.values]
        data = [Embedding(index, vector) for index, vector in enumerate(vectors)]
        return EmbeddingList(request.id, request.model, data, PooledUsage.of(pooled))


def _text(given: object, field: str) -> str | IdRow:
    try:
        return given if isinstance(given, str) else IdRow(given)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        message = f"{field} must be a string or a list of token ids (0 to {MAX_TOKEN_ID})"
        raise InvalidRequest(message, param=field) from None
