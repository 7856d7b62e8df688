"""POST /api/embed and the older POST /api/embeddings: vectors of texts."""

from dataclasses import replace
from typing import Annotated, Any

from msgspec import Struct, field

from application.use_cases.embed import PooledTexts
from domain.request.pooling import PooledPrompt
from domain.request.request import GenerationRequest
from interfaces.http.fields.parameters import ignored, mapped, supported
from interfaces.http.fields.pooled_body import Dimensions, PooledBody, as_json
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.loading import KeepAlive, loaded_or_unloaded, model_id


class EmbedAnswer(Struct):
    """The vectors. Durations in nanoseconds: `load_duration` until the texts were ready for the model."""

    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int
    total_duration: int
    load_duration: int


class EmbeddingsAnswer(Struct):
    embedding: list[float]


class EmbedFields(PooledBody, kw_only=True):
    options: Annotated[Any, ignored("nothing is sampled, and the server loads models its own way")] = None
    keep_alive: KeepAlive = None

    async def loaded(self, context: RequestContext) -> int:
        """Loads or unloads the model of a body without texts. Returns the nanoseconds that it took."""
        await loaded_or_unloaded(context, self.model, self.keep_alive)
        return context.services.clock.now_ns() - context.arrived_ns

    def request(self, context: RequestContext) -> GenerationRequest:
        """Returns the request, for the model without `:latest`."""
        return replace(super().request(context), model=model_id(self.model, context.services.default_model))


class EmbedRequest(EmbedFields, kw_only=True):
    routes = (("/api/embed", "ollamaEmbed"),)

    input: Annotated[str | list[str], supported("a text, or a list of up to 2,048; none loads the model")]
    truncate: Annotated[
        bool | None, supported("true by default: a text beyond the context is cut at its end, not refused")
    ] = None
    dimensions: Dimensions = None

    def prompt(self) -> PooledPrompt:
        texts = (self.input,) if isinstance(self.input, str) else tuple(self.input)
        return PooledPrompt(texts, dimensions=self.dimensions, truncates=self.truncate is not False)

    async def instead(self, context: RequestContext) -> EmbedAnswer | None:
        if self.input:
            return None
        took_ns = await self.loaded(context)
        return EmbedAnswer(self.model or context.services.default_model, [], 0, took_ns, took_ns)

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbedAnswer:
        arrived_ns, vectors = request.arrived_ns or 0, list(map(as_json, pooled.values))
        return EmbedAnswer(
            self.model or request.model,
            vectors,
            pooled.num_tokens,
            pooled.ended_ns - arrived_ns,
            pooled.submitted_ns - arrived_ns,
        )


class EmbeddingsRequest(EmbedFields, kw_only=True):
    routes = (("/api/embeddings", "ollamaEmbeddings"),)

    text: Annotated[str, mapped("one text; beyond the context, it is cut at its end; none loads the model")] = field(
        name="prompt"
    )

    def prompt(self) -> PooledPrompt:
        return PooledPrompt((self.text,), truncates=True, field="prompt")

    async def instead(self, context: RequestContext) -> EmbeddingsAnswer | None:
        if self.text:
            return None
        await self.loaded(context)
        return EmbeddingsAnswer([])

    def answer(self, request: GenerationRequest, pooled: PooledTexts) -> EmbeddingsAnswer:
        return EmbeddingsAnswer(as_json(pooled.values[0]))
