"""OpenAI's Responses, a dialect of its own with the error shape of OpenAI's other one."""

from interfaces.http.dialect import Dialect
from interfaces.http.errors import Problem
from interfaces.http.openai.errors import ErrorBody, error_body
from interfaces.http.responses.responses import Responses


class OpenAiResponses(Dialect):
    paths = ("/v1/responses",)
    operations = (Responses(),)
    error_type = ErrorBody

    def error_body(self, problem: Problem) -> ErrorBody:
        return error_body(problem)


__all__ = ("OpenAiResponses",)
