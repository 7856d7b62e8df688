"""POST /api/embed and the older POST /api/embeddings: vectors of texts."""

from typing import Annotated, Any

from msgspec import Struct

from application.use_cases.embed import PooledTexts
from domain.models.capability import Capability
from domain.request.pooling import PooledPrompt, Pooling
from domain.request.request import GenerationRequest
from interfaces.http.answering.dialect import PooledOperation
from interfaces.http.fields.parameters import ignored, mapped, supported
from interfaces.http.fields.pooled_fields import PooledFields, as_json
from interfaces.http.incoming.request_context import RequestContext
from interfaces.http.ollama.chat import model_id


class EmbedFields(PooledFields, kw_only=True):
    """The fields that both have."""

    options: Annotated[Any, ignored("they are about generating text")] = None
    keep_alive: Annotated[Any, ignored("models stay loaded until another needs the room")] = None

    def named(self, context: RequestContext, prompt: PooledPrompt) -> GenerationRequest:
        """Returns the request of a body, for the model without `:latest`."""
        return self.request(context, "ollama", prompt, model=model_id(self.model, context.services.default_model))


class EmbedRequest(EmbedFields, kw_only=True):
    """The body of POST /api/embed."""

    input: Annotated[str | list[str], supported("a text, or a list of up to 2,048")]
    truncate: Annotated[
        bool | None, supported("true by default: a text beyond the context is cut at its end, not refused")
    ] = None
    dimensions: Annotated[
        int | None, supported("the first numbers of each vector, normalised again, where the model was trained for it")
    ] = None


class EmbeddingsRequest(EmbedFields, kw_only=True):
    """The body of POST /api/embeddings."""

    prompt: Annotated[str, mapped("one text; beyond the context, it is cut at its end")]


class EmbedAnswer(Struct):
    model: str
    embeddings: list[list[float]]
    prompt_eval_count: int


class EmbeddingsAnswer(Struct):
    embedding: list[float]


def _embed(body: EmbedRequest, context: RequestContext) -> GenerationRequest:
    texts = (body.input,) if isinstance(body.input, str) else tuple(body.input)
    pooling = Pooling(Capability.EMBED, body.dimensions)
    return body.named(context, PooledPrompt(texts, pooling, truncates=body.truncate is not False))


def _embed_answer(body: EmbedRequest, request: GenerationRequest, pooled: PooledTexts) -> EmbedAnswer:
    vectors: list[list[float]] = [as_json(value) for value in pooled.values]
    return EmbedAnswer(body.model or request.model, vectors, pooled.num_tokens)


EMBED = PooledOperation("/api/embed", "ollamaEmbed", EmbedRequest, EmbedAnswer, convert=_embed, answer=_embed_answer)
EMBEDDINGS = PooledOperation(
    "/api/embeddings",
    "ollamaEmbeddings",
    EmbeddingsRequest,
    EmbeddingsAnswer,
    convert=lambda body, context: body.named(
        context, PooledPrompt((body.prompt,), Pooling(Capability.EMBED), truncates=True, field="prompt")
    ),
    answer=lambda _body, _request, pooled: EmbeddingsAnswer(as_json(pooled.values[0])),
)
