"""Stored responses. Each has documents of three kinds, all raw JSON:

    response      the body as it was answered, for GET
    turn          its own input and output items and the id of the response before, so that a conversation is a chain
    output_item   each item of the output under its own id, for `item_reference`

    turn of resp_3 ──previous──► turn of resp_2 ──previous──► turn of resp_1

The items that one request looks up are bounded in bytes and in values, before any of it is decoded.
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw, Struct

from application.ports.document_store import DocumentStore
from application.services.documents import Documents
from domain.errors import InvalidRequest
from domain.request.document import DocumentKey, Owner
from interfaces.http.incoming.json_body import MAX_NODES, num_nodes

RESPONSE, TURN, OUTPUT_ITEM = "response", "turn", "output_item"

MAX_RESPONSES = 1_000
"""Bound on the responses of a conversation."""

MAX_BYTES = 32 << 20
"""Bound on what is looked up for one request: what a client may send at once. A longer prompt could not be served."""


class Turn(Struct):
    """A turn of a stored conversation. `input`: a response's own items, as they were sent."""

    previous: str | None
    input: list[Raw]
    output: list[Raw]

    @property
    def items(self) -> list[Raw]:
        return [*self.input, *self.output]


class PreviousResponseNotFound(InvalidRequest):
    """The previous response of a request is not stored (any more)."""

    code = "previous_response_not_found"

    def __init__(self, id: str) -> None:
        super().__init__(f"Previous response with id '{id[:100]}' not found.", param="previous_response_id")


class LookupBudget:
    """The bound on what is looked up for one request. `num_bytes`: so far."""

    def __init__(self) -> None:
        self.num_bytes = self._num_nodes = 0

    def take(self, body: bytes, param: str) -> None:
        """Raises InvalidRequest, naming `param`."""
        self.num_bytes += len(body)
        if self.num_bytes > MAX_BYTES:
            raise InvalidRequest(
                f"{param}: the items that it refers to have more than {MAX_BYTES >> 20} MiB", param=param
            )
        self._num_nodes += num_nodes(body)
        if self._num_nodes > MAX_NODES:
            raise InvalidRequest(f"{param}: the items that it refers to hold more than {MAX_NODES} values", param=param)


_turns = msgspec.json.Decoder(Turn)


async def find(documents: Documents, owner: Owner, id: str) -> bytes | None:
    """The body as it was answered. Raises StoreUnresponsive."""
    return await documents.ask(lambda store: _read(store, DocumentKey(owner, RESPONSE, id)))


async def delete(documents: Documents, owner: Owner, id: str) -> bool:
    """Returns whether it was stored. Raises StoreUnresponsive."""

    def forget(store: DocumentStore) -> bool:
        keys = [DocumentKey(owner, RESPONSE, id), DocumentKey(owner, TURN, id)]
        body = _read(store, keys[1])
        output = _turns.decode(body).output if body is not None else []
        keys += [DocumentKey(owner, OUTPUT_ITEM, msgspec.json.decode(raw, type=_WithId).id) for raw in output]
        return bool(store.delete(keys))

    return await documents.ask(forget)


async def chain(documents: Documents, owner: Owner, id: str, budget: LookupBudget) -> dict[str, Turn]:
    """The turn of the response and those of all before it by id, the oldest first. Raises PreviousResponseNotFound,
    naming the first that is missing, InvalidRequest for a chain that is too long, StoreUnresponsive."""

    def read(store: DocumentStore) -> dict[str, Turn]:
        found = dict(_chain(store, owner, id, budget, "previous_response_id"))
        missing = next(reversed(found.values())).previous if found else id
        if missing is not None:
            raise PreviousResponseNotFound(missing)
        return dict(reversed(found.items()))

    return await documents.ask(read)


async def kept_chain(documents: Documents, owner: Owner, id: str, budget: LookupBudget) -> dict[str, Turn]:
    """The part of the chain that is still stored; empty without the response itself. Raises InvalidRequest,
    StoreUnresponsive."""
    return await documents.ask(lambda store: dict(reversed([*_chain(store, owner, id, budget, "response_id")])))


async def find_items(
    documents: Documents, owner: Owner, ids: Mapping[str, str], budget: LookupBudget
) -> dict[str, Raw]:
    """Output items by their ids, those that are stored. `ids`: by the field that names each. Raises InvalidRequest,
    StoreUnresponsive."""

    def read(store: DocumentStore) -> dict[str, Raw]:
        found: dict[str, Raw] = {}
        for param, id in ids.items():
            if id not in found and (body := _read(store, DocumentKey(owner, OUTPUT_ITEM, id))) is not None:
                budget.take(body, param)
                found[id] = Raw(body)
        return found

    return await documents.ask(read)


class _WithId(Struct):
    id: str


def _chain(store: DocumentStore, owner: Owner, id: str, budget: LookupBudget, param: str) -> Iterator[tuple[str, Turn]]:
    """The turns that are stored, the youngest first."""
    next_id: str | None = id
    for _ in range(MAX_RESPONSES):
        body = _read(store, DocumentKey(owner, TURN, next_id)) if next_id is not None else None
        if next_id is None or body is None:
            return
        budget.take(body, param)
        turn = _turns.decode(body)
        yield next_id, turn
        next_id = turn.previous
    if next_id is not None:
        raise InvalidRequest(f"{param}: more than {MAX_RESPONSES} responses come before it", param=param)


def _read(store: DocumentStore, key: DocumentKey) -> bytes | None:
    (document,) = store.get([key])
    return None if document is None else document.body
