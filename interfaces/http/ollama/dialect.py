"""A subset of Ollama's dialect: chat, generate and the lists of models. Streams are a JSON object a line."""

from collections.abc import Sequence

from litestar.handlers import HTTPRouteHandler

from interfaces.http.answering.dialect import Dialect
from interfaces.http.errors import Problem
from interfaces.http.ollama.errors import OllamaError, error_body
from interfaces.http.ollama.models import model_routes
from interfaces.http.ollama.operations import Chat, Generate
from interfaces.http.services import Services


class Ollama(Dialect):
    paths = ("/api",)
    operations = (Chat(), Generate())
    error_type = OllamaError

    def routes(self, services: Services) -> Sequence[HTTPRouteHandler]:
        return model_routes(services)

    def error_body(self, problem: Problem) -> OllamaError:
        return error_body(problem)
