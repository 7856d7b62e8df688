"""The dialects that a server speaks; the first one's errors are for paths that no dialect owns."""

from interfaces.http.answering.dialect import Dialect, Dialects
from interfaces.http.anthropic.answer import MessageErrorBody, message_error
from interfaces.http.anthropic.messages import MESSAGES, count_tokens_routes
from interfaces.http.errors import ErrorBody, openai_error
from interfaces.http.ollama.answer import OllamaError, ollama_error
from interfaces.http.ollama.chat import CHAT, GENERATE
from interfaces.http.ollama.embed import EmbeddingsRequest, EmbedRequest
from interfaces.http.ollama.models import ollama_model_routes
from interfaces.http.openai.chat import CHAT_COMPLETIONS
from interfaces.http.openai.completions import COMPLETIONS
from interfaces.http.openai.embeddings import EmbeddingRequest
from interfaces.http.openai.models import model_routes
from interfaces.http.rerank.rerank import RerankError, RerankRequest, ScoreRequest, rerank_error
from interfaces.http.responses.answer import CREATE_RESPONSE, responses_error
from interfaces.http.responses.stored_routes import stored_routes

OPENAI = Dialect(
    paths=("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/models"),
    operations=(CHAT_COMPLETIONS, COMPLETIONS),
    pooled=(("/v1/embeddings", "createEmbedding", EmbeddingRequest),),
    error_type=ErrorBody,
    error_body=openai_error,
    routes=model_routes,
)
RESPONSES = Dialect(
    paths=("/v1/responses",),
    operations=(CREATE_RESPONSE,),
    error_type=ErrorBody,
    error_body=responses_error,
    routes=stored_routes,
)
ANTHROPIC = Dialect(
    paths=("/v1/messages",),
    operations=(MESSAGES,),
    error_type=MessageErrorBody,
    error_body=message_error,
    routes=count_tokens_routes,
)
OLLAMA = Dialect(
    paths=("/api",),
    operations=(CHAT, GENERATE),
    pooled=(
        ("/api/embed", "ollamaEmbed", EmbedRequest),
        ("/api/embeddings", "ollamaEmbeddings", EmbeddingsRequest),
    ),
    error_type=OllamaError,
    error_body=ollama_error,
    routes=ollama_model_routes,
)
RERANK = Dialect(
    paths=("/v1/rerank", "/v2/rerank", "/score", "/v1/score"),
    operations=(),
    error_type=RerankError,
    error_body=rerank_error,
    pooled=(
        ("/v1/rerank", "rerank", RerankRequest),
        ("/v2/rerank", "rerankV2", RerankRequest),
        ("/score", "score", ScoreRequest),
        ("/v1/score", "scoreV1", ScoreRequest),
    ),
)

DIALECTS = Dialects([OPENAI, RESPONSES, ANTHROPIC, OLLAMA, RERANK])
