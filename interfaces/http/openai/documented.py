"""What the OpenAPI document says of every completion route besides its plain answer."""

from dataclasses import dataclass

from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, Operation, Schema
from litestar.openapi.spec.enums import OpenAPIType

from interfaces.http.openai.errors import ErrorBody


@dataclass
class StreamableOperation(Operation):
    """An operation whose 200 is JSON, or server-sent events when the body says `stream: true`."""

    def __post_init__(self) -> None:
        success = (self.responses or {}).get("200")
        if isinstance(success, OpenAPIResponse) and success.content is not None:
            success.content["text/event-stream"] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))


def errors(*statuses: int) -> dict[int, ResponseSpec]:
    """The error answers a route has, all in one shape."""
    reasons = {
        400: "The request is malformed or can never succeed; `param` names the field.",
        401: "An API key is required.",
        404: "No such model.",
        413: "The body is too large.",
        500: "The computation failed.",
        503: "The server is busy or not ready; `Retry-After` says when to try again.",
    }
    return {
        status: ResponseSpec(ErrorBody, description=reasons[status], generate_examples=False) for status in statuses
    }


__all__ = ("StreamableOperation", "errors")
