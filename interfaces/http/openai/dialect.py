"""OpenAI's dialect: chat and text completions, and the list of models."""

from collections.abc import Sequence

from litestar.handlers import HTTPRouteHandler

from interfaces.http.answering.dialect import Dialect
from interfaces.http.errors import Problem
from interfaces.http.openai.chat import ChatCompletions
from interfaces.http.openai.completions import Completions
from interfaces.http.openai.errors import ErrorBody, error_body
from interfaces.http.openai.models import model_routes
from interfaces.http.services import Services


class OpenAi(Dialect):
    paths = ("/v1/chat/completions", "/v1/completions", "/v1/models")
    operations = (ChatCompletions(), Completions())
    error_type = ErrorBody

    def routes(self, services: Services) -> Sequence[HTTPRouteHandler]:
        return model_routes(services)

    def error_body(self, problem: Problem) -> ErrorBody:
        return error_body(problem)
