"""A request whose references have been looked up: earlier responses, and items that are named by their id."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Raw

from domain.errors import InvalidRequest
from domain.request.document import Owner
from interfaces.http.answering.dialect import Asked
from interfaces.http.fields.parameters import ignored
from interfaces.http.responses import stored
from interfaces.http.responses.items import ItemReference, decoded, kind_of
from interfaces.http.responses.responses_request import ResponsesRequest
from interfaces.http.responses.stored import LookupBudget

MAX_REFERENCES = 1_000


class ResolvedRequest(ResponsesRequest, kw_only=True):
    """`earlier`: the items before the input's own. Clients do not send it."""

    earlier: Annotated[list[Raw], ignored("made of `previous_response_id`")]


async def resolved(body: ResponsesRequest, asked: Asked, owner: Owner) -> ResponsesRequest:
    """Raises InvalidRequest, naming what cannot be found or is too much, BodiesFull, and StoreUnresponsive."""
    budget, documents = LookupBudget(), asked.services.documents
    earlier: list[Raw] = []
    if body.previous_response_id is not None:
        turns = await stored.chain(documents, owner, body.previous_response_id, budget)
        earlier = [item for turn in turns.values() for item in turn.items]
    references = _references(body.input)
    if not earlier and not references:
        return body
    found = await stored.find_items(documents, owner, {f"input[{at}].id": id for at, id in references.items()}, budget)
    for at, id in references.items():
        if id not in found:
            raise InvalidRequest(f"Item with id '{id[:100]}' not found.", param=f"input[{at}].id")
    asked.visit.hold(budget.num_bytes)
    items = body.input
    if not isinstance(items, str):
        items = [found[references[at]] if at in references else item for at, item in enumerate(items)]
    fields: dict[str, Any] = {**msgspec.structs.asdict(body), "input": items, "earlier": earlier}
    return ResolvedRequest(**fields)


def earlier_items(body: ResponsesRequest) -> Sequence[Raw]:
    return body.earlier if isinstance(body, ResolvedRequest) else ()


def _references(items: str | Sequence[Raw]) -> dict[int, str]:
    """The ids of those that are references, by place. Raises InvalidRequest."""
    found: dict[int, str] = {}
    for at, raw in enumerate(() if isinstance(items, str) else items):
        if kind_of(raw, f"input[{at}]") is ItemReference:
            found[at] = decoded(raw, ItemReference, f"input[{at}]").id
    if len(found) > MAX_REFERENCES:
        raise InvalidRequest(f"input: more than {MAX_REFERENCES} references to items", param="input")
    return found
