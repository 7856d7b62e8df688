"""Responses as they are kept: each with its own input and the id of the one before, so that a conversation is a chain.

    resp-3 ──previous──► resp-2 ──previous──► resp-1

What went before a response is put together from the chain when somebody asks: inputs and outputs, the oldest first.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from application.ports.document_store import DocumentStore
from application.services.documents import Documents
from domain.document import DocumentKey, Owner
from domain.errors import InvalidRequest
from interfaces.http.responses.answer import ResponseBody

KIND = "response"
MAX_RESPONSES = 1_000
MAX_BYTES = 64 << 20
"""Of a chain: more could not be a prompt."""

Item = dict[str, Any]


class StoredResponse(Struct):
    """`input`: its own items, as they were sent."""

    response: dict[str, Any]
    input: list[Item]
    previous: str | None = None

    @property
    def items(self) -> list[Item]:
        return [*self.input, *self.response["output"]]


class PreviousResponseNotFound(InvalidRequest):
    """A response that a request goes on from is not here (any more)."""

    code = "previous_response_not_found"

    def __init__(self, id: str) -> None:
        super().__init__(f"Previous response with id '{id[:100]}' not found.", param="previous_response_id")


_decoder = msgspec.json.Decoder(StoredResponse)


def keep(documents: Documents, owner: Owner, response: ResponseBody, input: Sequence[Item], asked_ns: int) -> None:
    """Returns at once. `asked_ns`: as in Documents.keep."""
    stored = {"response": response, "input": input, "previous": response.previous_response_id}
    documents.keep({DocumentKey(owner, KIND, response.id): msgspec.json.encode(stored)}, response.model, asked_ns)


async def find(documents: Documents, owner: Owner, id: str) -> StoredResponse | None:
    """Raises StoreUnresponsive."""
    return await documents.ask(lambda store: _read(store, owner, id))


async def chain(documents: Documents, owner: Owner, id: str) -> list[StoredResponse]:
    """The response and all before it, the oldest first. Raises PreviousResponseNotFound, naming the first that is
    missing, InvalidRequest for a chain that is too long, StoreUnresponsive."""
    return await documents.ask(lambda store: _chain(store, owner, id))


async def kept_chain(documents: Documents, owner: Owner, id: str) -> list[StoredResponse]:
    """As much of it as is still kept; empty without the response itself. Raises StoreUnresponsive."""
    return await documents.ask(lambda store: _chain(store, owner, id, is_whole=False))


async def find_items(documents: Documents, owner: Owner, ids: Sequence[str]) -> dict[str, Item]:
    """Output items by their ids, as far as they are here. An item's id holds its response's (`AnswerContext.item`).
    Raises StoreUnresponsive."""
    responses = {id.partition("_")[2].rpartition("_")[0] for id in ids}

    def read(store: DocumentStore) -> dict[str, Item]:
        found = [_read(store, owner, response) for response in sorted(responses)]
        return {item["id"]: item for one in found if one is not None for item in one.response["output"]}

    return await documents.ask(read)


def _chain(store: DocumentStore, owner: Owner, id: str, *, is_whole: bool = True) -> list[StoredResponse]:
    found: list[StoredResponse] = []
    next_id: str | None = id
    num_bytes = 0
    while next_id is not None:
        (document,) = store.get([DocumentKey(owner, KIND, next_id)])
        if document is None:
            if is_whole:
                raise PreviousResponseNotFound(next_id)
            break
        num_bytes += len(document.body)
        if len(found) == MAX_RESPONSES or num_bytes > MAX_BYTES:
            raise InvalidRequest(
                f"previous_response_id: more than {MAX_RESPONSES} responses or {MAX_BYTES >> 20} MiB come before",
                param="previous_response_id",
            )
        found.append(_decoder.decode(document.body))
        next_id = found[-1].previous
    return found[::-1]


def _read(store: DocumentStore, owner: Owner, id: str) -> StoredResponse | None:
    (document,) = store.get([DocumentKey(owner, KIND, id)])
    return None if document is None else _decoder.decode(document.body)


__all__ = (
    "KIND",
    "MAX_RESPONSES",
    "PreviousResponseNotFound",
    "StoredResponse",
    "chain",
    "find",
    "find_items",
    "keep",
    "kept_chain",
)
