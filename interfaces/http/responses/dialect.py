"""OpenAI's Responses, a dialect of its own with the error shape of OpenAI's other one."""

from collections.abc import Sequence

from litestar.handlers import HTTPRouteHandler

from interfaces.http.answering.dialect import Dialect
from interfaces.http.errors import Problem
from interfaces.http.responses.errors import ResponseProblem, error_body
from interfaces.http.responses.responses import Responses
from interfaces.http.responses.stored_routes import stored_routes
from interfaces.http.services import Services


class OpenAiResponses(Dialect):
    paths = ("/v1/responses",)
    operations = (Responses(),)
    error_type = ResponseProblem

    def routes(self, services: Services) -> Sequence[HTTPRouteHandler]:
        return stored_routes(services)

    def error_body(self, problem: Problem) -> ResponseProblem:
        return error_body(problem)
