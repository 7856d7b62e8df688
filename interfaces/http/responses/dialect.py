"""OpenAI's Responses, a dialect of its own with the error shape of OpenAI's other one."""

from interfaces.http.dialect import Dialect
from interfaces.http.errors import Problem
from interfaces.http.responses.errors import ResponseProblem, error_body
from interfaces.http.responses.responses import Responses


class OpenAiResponses(Dialect):
    paths = ("/v1/responses",)
    operations = (Responses(),)
    error_type = ResponseProblem

    def error_body(self, problem: Problem) -> ResponseProblem:
        return error_body(problem)


__all__ = ("OpenAiResponses",)
