"""POST /api/embed and the older POST /api/embeddings: vectors of texts."""

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Struct, field

from application.use_cases.embed import PooledTexts
from domain.models.capability import Capability
from domain.request.pooling import PooledPrompt, Pooling
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import ignored, mapped, supported
from interfaces.http.fields.pooled_fields import Dimensions, PooledFields, as_json
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.chat import model_id


class EmbedAnswer(Struct):
    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


class EmbeddingsAnswer(Struct):
    embedding: list[float]


class EmbedFields(PooledFields, kw_only=True):
    """The fields that both have."""

    prefix = "ollama"

    options: Annotated[Any, ignored("they are about generating text")] = None
    keep_alive: Annotated[Any, ignored("models stay loaded until another needs the room")] = None

    def request(self, context: RequestContext) -> GenerationRequest:
        """Returns the request, for the model without `:latest`."""
        return replace(super().request(context), model=model_id(self.model, context.services.default_model))


class EmbedRequest(EmbedFields, kw_only=True):
    """The body of POST /api/embed."""

    input: Annotated[str | list[str], supported("a text, or a list of up to 2,048")]
    truncate: Annotated[
        bool | None, supported("true by default: a text beyond the context is cut at its end, not refused")
    ] = None
    dimensions: Dimensions = None

    def prompt(self) -> PooledPrompt:
        texts = (self.input,) if isinstance(self.input, str) else tuple(self.input)
        return PooledPrompt(texts, Pooling(Capability.EMBED, self.dimensions), truncates=self.truncate is not False)

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbedAnswer:
        return EmbedAnswer(self.model or request.model, list(map(as_json, pooled.values)), pooled.num_tokens)


class EmbeddingsRequest(EmbedFields, kw_only=True):
    """The body of POST /api/embeddings."""

    text: Annotated[str, mapped("one text; beyond the context, it is cut at its end")] = field(name="prompt")

    def prompt(self) -> PooledPrompt:
        return PooledPrompt((self.text,), Pooling(Capability.EMBED), truncates=True, field="prompt")

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbeddingsAnswer:
        return EmbeddingsAnswer(as_json(pooled.values[0]))
