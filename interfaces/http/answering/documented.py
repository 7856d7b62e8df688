"""The header that reports the reuse of a prompt, and the OpenAPI document's errors, streams and links, for all
dialects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from litestar.openapi.datastructures import ResponseSpec
from litestar.openapi.spec import Link, OpenAPIHeader, OpenAPIMediaType, OpenAPIResponse, Operation, Schema
from litestar.openapi.spec.enums import OpenAPIType
from msgspec import Struct

from domain.prefix.explanation import Explanation
from interfaces.http.errors import ErrorBody

Links = Mapping[str, Link]
"""Operations that take a part of an answer, by name of the link."""

CACHE_HEADER = "x-cairn-cache"
PENDING = "pending"
MAX_SHOWN = 16
"""Choices in the header; proxies refuse headers of many kilobytes."""


@dataclass
class AnswerOperation(Operation):
    """An operation whose 200 links to others, and is JSON or, where the body requests one, a stream of `stream_type`;
    with a stream, both have the header that reports the reuse."""

    links: ClassVar[Links]
    stream_type: ClassVar[str]

    def __post_init__(self) -> None:
        success = (self.responses or {}).get("200")
        if not isinstance(success, OpenAPIResponse):
            return
        success.links = dict(self.links) or None
        if self.stream_type and success.content is not None:
            success.content[self.stream_type] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))
            success.headers = {**(success.headers or {}), CACHE_HEADER: _cache_header()}


def documented(links: Links, stream_type: str = "") -> type[AnswerOperation]:
    return type("AnswerOperation", (AnswerOperation,), {"links": links, "stream_type": stream_type})


def _cache_header() -> OpenAPIHeader:
    example = "reused=768; live=0; hot=512; store=256; computed=12; reason=last-token"
    return OpenAPIHeader(
        Schema(type=OpenAPIType.STRING, examples=[example]),
        description=f"The reuse of the prompt, one entry a choice; `{PENDING}` for one that is still queued.",
    )


def errors(*statuses: int, error_type: type[Struct] = ErrorBody) -> dict[int, ResponseSpec]:
    """The error answers of a route, all of `error_type`, with those that every route has."""
    reasons = {
        400: "The request is malformed or can never succeed; `param` names the field.",
        401: "An API key is required.",
        403: "The key does not allow this, or web pages of this origin may not send requests.",
        404: "No such model.",
        409: "The configuration file was changed by another program meanwhile.",
        413: "The body is too large.",
        415: "The body is not JSON by its content type.",
        421: "The request is addressed to a host that this server does not answer to.",
        429: "A limit of the key is reached; `Retry-After` says when to try again.",
        500: "The computation failed.",
        503: "The server is busy or not ready; `Retry-After` says when to try again.",
    }
    return {
        status: ResponseSpec(error_type, description=reasons[status], generate_examples=False)
        for status in sorted({*statuses, 403, 421, 429})
    }


def cache_headers(explanations: Sequence[Explanation | None]) -> dict[str, str]:
    """The header that reports the reuse: one entry a choice, by index; None for one that was not admitted yet."""
    shown = [PENDING if one is None else one.header() for one in explanations[:MAX_SHOWN]]
    if len(explanations) > MAX_SHOWN:
        shown.append(f"more={len(explanations) - MAX_SHOWN}")
    return {CACHE_HEADER: ", ".join(shown)}
