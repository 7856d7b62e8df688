"""A body with a prompt in any dialect; a field that only one operation has determines which one it is for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Raw

from domain.errors import InvalidRequest
from domain.request.request import GenerationRequest
from interfaces.http.answering.dialect import Body, Operation
from interfaces.http.incoming.json_body import body_decoder, decode_json
from interfaces.http.incoming.request_context import RequestContext

_ABSENT = (b"", b"null")


@dataclass(frozen=True, slots=True)
class PromptBody:
    """A decoded body with the operation that it is for."""

    operation: Operation[Any]
    body: Body

    @property
    def wire_names(self) -> Mapping[str, str]:
        """The client's names for the domain's fields, for `renamed`."""
        return self.body.wire_names()

    async def requests(self, context: RequestContext, operation: str = "") -> Sequence[GenerationRequest]:
        """Returns one request a prompt, however many choices the body asks for, as the client's own; the route serves
        them in turn. `operation`: the operation id of their route. Raises any DomainError."""
        body = self.body
        if self.operation.resolved is not None:
            body = await self.operation.resolved(body, context)
        requests = await context.run(body.requests, context)
        own = [replace(request, num_choices=1, operation=operation) for request in requests]
        return await context.admit(own, in_turn=True)


class PromptBodies:
    """Decodes the bodies of those of these operations that have a discriminator."""

    def __init__(self, operations: Sequence[Operation[Any]]) -> None:
        self._by_field = {operation.discriminator: operation for operation in operations if operation.discriminator}
        self._decoders = {one.operation_id: body_decoder(one.body_type) for one in self._by_field.values()}
        fields = msgspec.defstruct("Discriminators", [(name, Raw, Raw()) for name in self._by_field])
        self._fields = msgspec.json.Decoder(fields)

    @property
    def annotation(self) -> Any:
        """The type of all such bodies in the OpenAPI document."""
        any_body: Any = None
        for operation in self._by_field.values():
            any_body = operation.body_type if any_body is None else any_body | operation.body_type
        return any_body

    def decode(self, raw: bytes) -> PromptBody:
        """Raises InvalidRequest."""
        fields = decode_json(raw, self._fields)
        present = [name for name in self._by_field if bytes(getattr(fields, name)) not in _ABSENT]
        if len(present) > 1:
            raise InvalidRequest(f"send {self._choice('({})')}, not both", param=present[-1])
        if not present:
            raise InvalidRequest(f"{self._choice('(of {})')} is missing", param=next(iter(self._by_field)))
        operation = self._by_field[present[0]]
        return PromptBody(operation, self._decoders[operation.operation_id](raw))

    def _choice(self, noun: str) -> str:
        """`messages (a chat) or prompt (a text completion)`."""
        return " or ".join(f"{name} {noun.format(operation.noun)}" for name, operation in self._by_field.items())
