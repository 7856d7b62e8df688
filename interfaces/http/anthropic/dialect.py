"""Anthropic's dialect: messages, and counting their tokens."""

from collections.abc import Sequence

from litestar.handlers import HTTPRouteHandler

from interfaces.http.answering.dialect import Dialect
from interfaces.http.anthropic.count_tokens import count_tokens_route
from interfaces.http.anthropic.errors import MessageErrorBody, error_body
from interfaces.http.anthropic.messages import Messages
from interfaces.http.errors import Problem
from interfaces.http.services import Services


class Anthropic(Dialect):
    paths = ("/v1/messages",)
    operations = (Messages(),)
    error_type = MessageErrorBody

    def routes(self, services: Services) -> Sequence[HTTPRouteHandler]:
        return [count_tokens_route(services)]

    def error_body(self, problem: Problem) -> MessageErrorBody:
        return error_body(problem)
