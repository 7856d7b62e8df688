"""The dialects that a server speaks; the first one's errors are for paths that no dialect owns."""

from interfaces.http.answering.dialect import Dialect, Dialects
from interfaces.http.anthropic.answer import MessageErrorBody, message_error
from interfaces.http.anthropic.messages import MESSAGES, count_tokens_routes
from interfaces.http.errors import ErrorBody, openai_error
from interfaces.http.fields.pooled_body import routes_of
from interfaces.http.fields.rendered import render_list_route, render_route
from interfaces.http.ollama.answer import OllamaError, ollama_error
from interfaces.http.ollama.chat import CHAT, GENERATE
from interfaces.http.ollama.embed import EmbeddingsRequest, EmbedRequest
from interfaces.http.ollama.models import ollama_model_routes
from interfaces.http.openai.chat import CHAT_COMPLETIONS
from interfaces.http.openai.completions import COMPLETIONS
from interfaces.http.openai.embeddings import EmbeddingRequest
from interfaces.http.openai.models import model_routes
from interfaces.http.openai.rerank import RerankRequest, ScoreRequest
from interfaces.http.responses.answer import CREATE_RESPONSE
from interfaces.http.responses.bodies import responses_error
from interfaces.http.responses.compact import COMPACT_RESPONSE
from interfaces.http.responses.input_tokens import input_token_routes
from interfaces.http.responses.socket import response_sockets
from interfaces.http.responses.stored_routes import stored_routes

OPENAI = Dialect(
    paths=("/v1/chat/completions", "/v1/completions", "/v1/models"),
    operations=(CHAT_COMPLETIONS, COMPLETIONS),
    error_type=ErrorBody,
    error_body=openai_error,
    routes=lambda services: [
        *model_routes(services),
        render_route(CHAT_COMPLETIONS, ErrorBody),
        render_list_route(COMPLETIONS, ErrorBody),
        *routes_of(ErrorBody, EmbeddingRequest, RerankRequest, ScoreRequest),
    ],
)
RESPONSES = Dialect(
    paths=("/v1/responses",),
    operations=(CREATE_RESPONSE, COMPACT_RESPONSE),
    error_type=ErrorBody,
    error_body=responses_error,
    routes=lambda services: [*stored_routes(services), *input_token_routes(services)],
    sockets=response_sockets,
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
    error_type=OllamaError,
    error_body=ollama_error,
    routes=lambda services: [*ollama_model_routes(services), *routes_of(OllamaError, EmbedRequest, EmbeddingsRequest)],
    takes_any_type=True,
)

DIALECTS = Dialects([OPENAI, RESPONSES, ANTHROPIC, OLLAMA])
