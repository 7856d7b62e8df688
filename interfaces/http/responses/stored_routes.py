"""GET and DELETE of stored responses, and their input items, for the client that made them.

What was looked up counts among the bodies of open requests until it was sent: a client that reads slowly holds its own
share of them at most.
"""

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from litestar import delete, get, post
from litestar.connection import Request
from litestar.handlers import HTTPRouteHandler
from litestar.params import Parameter
from litestar.response import Response
from msgspec import Raw, Struct

from domain.errors import DocumentNotFound, InvalidRequest
from interfaces.http.answering.documented import errors
from interfaces.http.incoming.request_context import context_of
from interfaces.http.responses import stored
from interfaces.http.responses.bodies import ResponseBody
from interfaces.http.responses.stored import LookupBudget, Turn
from interfaces.http.services import Services

PATH = "/v1/responses/{response_id:str}"

Fields = dict[str, Raw]

_OUTPUT_TEXT = b'"output_text"'
_ANSWERED: Fields = {"annotations": Raw(b"[]"), "logprobs": Raw(b"[]")}


class ItemPage(Struct, tag_field="object", tag="list"):
    data: list[dict[str, Any]]
    first_id: str
    last_id: str
    has_more: bool


class ListedItem(Struct):
    """An item, with the fields that OpenAI's lists have. `suffix`: the end of its id where it has none of its own, or
    one that another item before it has."""

    raw: Raw
    suffix: str
    is_renamed: bool = False

    @property
    def id(self) -> str:
        return str(msgspec.json.decode(self.fields()["id"]))

    def fields(self) -> Fields:
        fields = msgspec.json.decode(self.raw, type=Fields)
        own_id = None if self.is_renamed else _id(fields)
        completed = {"status": _json("completed"), **fields}
        if "role" not in fields and fields.get("type") != _json("message"):
            return {**completed, "id": own_id or _json(f"item_{self.suffix}")}
        return {
            **completed,
            "type": _json("message"),
            "id": own_id or _json(f"msg_{self.suffix}"),
            "content": _parts(fields),
        }


class DeletedBody(Struct, tag_field="object", tag="response"):
    id: str
    deleted: bool = True


def stored_routes(services: Services) -> list[HTTPRouteHandler]:
    documents = services.documents

    @get(PATH, operation_id="getResponse", responses=errors(400, 401, 404, 503))
    async def get_response(
        response_id: str, request: Request[Any, Any, Any], stream: bool | None = None
    ) -> Response[ResponseBody]:
        if stream:
            raise InvalidRequest("stream is not supported here: nothing runs in the background", param="stream")
        found = await stored.find(documents, context_of(request.scope).document_owner(), response_id)
        if found is None:
            raise _not_found(response_id)
        return _sent(found, request)

    @delete(PATH, status_code=200, operation_id="deleteResponse", responses=errors(401, 404, 503))
    async def delete_response(response_id: str, request: Request[Any, Any, Any]) -> DeletedBody:
        if not await stored.delete(documents, context_of(request.scope).document_owner(), response_id):
            raise _not_found(response_id)
        return DeletedBody(response_id)

    @get(
        f"{PATH}/input_items",
        operation_id="listInputItems",
        responses=errors(400, 401, 404, 503),
    )
    async def list_input_items(
        response_id: str,
        request: Request[Any, Any, Any],
        after: str | None = None,
        limit: Annotated[int, Parameter(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response[ItemPage]:
        budget = LookupBudget()
        turns = await stored.kept_chain(documents, context_of(request.scope).document_owner(), response_id, budget)
        if not turns:
            raise _not_found(response_id)
        context_of(request.scope).hold(budget.num_bytes)
        is_descending = order == "desc"
        page = await asyncio.to_thread(item_page, turns, after=after, limit=limit, is_descending=is_descending)
        return _sent(msgspec.json.encode(page), request)

    @post(
        f"{PATH}/cancel",
        status_code=200,
        operation_id="cancelResponse",
        responses=errors(400, 401),
    )
    async def cancel_response(response_id: str) -> Response[ResponseBody]:
        raise InvalidRequest(
            "only responses that run in the background can be cancelled, and background is not supported",
            param="background",
        )

    return [get_response, delete_response, list_input_items, cancel_response]


def item_page(turns: Mapping[str, Turn], *, after: str | None, limit: int, is_descending: bool) -> ItemPage:
    """A page of all that was in the prompt of the last of `turns`, which are in order of time. Raises InvalidRequest
    for an `after` that is not among them."""
    ordered = _listed(turns)
    if is_descending:
        ordered.reverse()
    start = 0
    if after is not None:
        start = next((place for place, item in enumerate(ordered, 1) if item.id == after), 0)
        if not start:
            raise InvalidRequest(f"after: there is no item '{after[:100]}'", param="after")
    data: list[dict[str, Any]] = [item.fields() for item in ordered[start : start + limit]]
    ids = [str(msgspec.json.decode(fields["id"])) for fields in data]
    first, last = (ids[0], ids[-1]) if ids else ("", "")
    return ItemPage(data, first, last, start + limit < len(ordered))


def _listed(turns: Mapping[str, Turn]) -> list[ListedItem]:
    found: list[ListedItem] = []
    last = list(turns)[-1]
    for id, turn in turns.items():
        found += [ListedItem(raw, f"{id}_{at}") for at, raw in enumerate(turn.input)]
        found += [ListedItem(raw, f"{id}_output_{at}") for at, raw in enumerate(turn.output) if id != last]
    seen: set[str] = set()
    for item in found:
        item.is_renamed = item.id in seen
        seen.add(item.id)
    return found


def _id(fields: Fields) -> Raw | None:
    return fields["id"] if fields.get("id") not in (None, _json(None), _json("")) else None


def _parts(fields: Fields) -> Raw:
    """The content of a message as parts. Those of an answer have the fields that OpenAI's document requires."""
    content = fields.get("content", _json(None))
    if bytes(content).startswith(b'"'):
        kind = "output_text" if fields.get("role") == _json("assistant") else "input_text"
        parts: list[Fields] = [{"type": _json(kind), "text": content}]
    elif _OUTPUT_TEXT not in bytes(content):
        return content
    else:
        parts = msgspec.json.decode(content, type=list[Fields])
    return _json([{**_ANSWERED, **part} if part.get("type") == Raw(_OUTPUT_TEXT) else part for part in parts])


def _json(value: object) -> Raw:
    return Raw(msgspec.json.encode(value))


def _sent(body: bytes, request: Request[Any, Any, Any]) -> Response[Any]:
    """Raises BodiesFull."""
    context_of(request.scope).hold(len(body))
    return Response(body, media_type="application/json")


def _not_found(id: str) -> DocumentNotFound:
    return DocumentNotFound(f"Response with id '{id[:100]}' not found.", param="response_id")
