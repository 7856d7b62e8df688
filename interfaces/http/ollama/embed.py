"""POST /api/embed and the older POST /api/embeddings: vectors of texts."""

from dataclasses import replace
from typing import Annotated

from msgspec import Struct, field

from application.use_cases.embed import PooledTexts
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import mapped, supported
from interfaces.http.fields.pooled_body import Dimensions, PooledBody, as_json
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.chat import model_id


class EmbedAnswer(Struct):
    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


class EmbeddingsAnswer(Struct):
    embedding: list[float]


class EmbedFields(PooledBody, kw_only=True):
    def request(self, context: RequestContext) -> GenerationRequest:
        """Returns the request, for the model without `:latest`."""
        return replace(super().request(context), model=model_id(self.model, context.services.default_model))


class EmbedRequest(EmbedFields, kw_only=True):
    routes = (("/api/embed", "ollamaEmbed"),)

    input: Annotated[str | list[str], supported("a text, or a list of up to 2,048")]
    truncate: Annotated[
        bool | None, supported("true by default: a text beyond the context is cut at its end, not refused")
    ] = None
    dimensions: Dimensions = None

    def prompt(self) -> PooledPrompt:
        texts = (self.input,) if isinstance(self.input, str) else tuple(self.input)
        return PooledPrompt(texts, dimensions=self.dimensions, truncates=self.truncate is not False)

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbedAnswer:
        return EmbedAnswer(self.model or request.model, list(map(as_json, pooled.values)), pooled.num_tokens)


class EmbeddingsRequest(EmbedFields, kw_only=True):
    routes = (("/api/embeddings", "ollamaEmbeddings"),)

    text: Annotated[str, mapped("one text; beyond the context, it is cut at its end")] = field(name="prompt")

    def prompt(self) -> PooledPrompt:
        return PooledPrompt((self.text,), truncates=True, field="prompt")

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbeddingsAnswer:
        return EmbeddingsAnswer(as_json(pooled.values[0]))
