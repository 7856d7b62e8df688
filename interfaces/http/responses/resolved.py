"""A request whose references have been looked up: earlier responses, and items that are named by their id."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from application.services.documents import Documents
from domain.document import Owner
from domain.errors import InvalidRequest
from interfaces.http.parameters import ignored
from interfaces.http.responses import stored
from interfaces.http.responses.responses_request import ResponsesRequest

MAX_REFERENCES = 1_000


class ResolvedRequest(ResponsesRequest, kw_only=True):
    """`earlier`: the items before the input's own. Nobody sends it."""

    earlier: Annotated[list[dict[str, Any]], ignored("made of `previous_response_id`")]


async def resolved(body: ResponsesRequest, documents: Documents, owner: Owner) -> ResolvedRequest:
    """Raises InvalidRequest, naming what cannot be found, and StoreUnresponsive."""
    earlier: list[dict[str, Any]] = []
    if body.previous_response_id is not None:
        chain = await stored.chain(documents, owner, body.previous_response_id)
        earlier = [item for one in chain for item in one.items]
    items = await _dereferenced(body.input, documents, owner)
    fields: dict[str, Any] = {**msgspec.structs.asdict(body), "input": items, "earlier": earlier}
    return ResolvedRequest(**fields)


def earlier_items(body: ResponsesRequest) -> Sequence[Mapping[str, Any]]:
    return body.earlier if isinstance(body, ResolvedRequest) else ()


async def _dereferenced(
    items: str | list[dict[str, Any]], documents: Documents, owner: Owner
) -> str | list[dict[str, Any]]:
    if isinstance(items, str):
        return items
    ids = {index: str(item.get("id")) for index, item in enumerate(items) if item.get("type") == "item_reference"}
    if not ids:
        return items
    if len(ids) > MAX_REFERENCES:
        raise InvalidRequest(f"input: more than {MAX_REFERENCES} references to items", param="input")
    found = await stored.find_items(documents, owner, list(ids.values()))
    for index, id in ids.items():
        if id not in found:
            raise InvalidRequest(f"Item with id '{id[:100]}' not found.", param=f"input[{index}].id")
    return [found[ids[index]] if index in ids else item for index, item in enumerate(items)]


__all__ = ("ResolvedRequest", "earlier_items", "resolved")
