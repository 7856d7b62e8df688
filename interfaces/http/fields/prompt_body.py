"""A body that any dialect takes for a prompt; a field that only one operation has says which one it is for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Raw

from domain.errors import InvalidRequest
from domain.request.request import GenerationRequest
from interfaces.http.answering.dialect import Asked, Operation
from interfaces.http.incoming.json_body import JsonBody, decode_json, decoded_body

_ABSENT = (b"", b"null")


@dataclass(frozen=True, slots=True)
class PromptBody:
    """A decoded body with the operation that it is for."""

    operation: Operation[Any]
    body: Any

    @property
    def wire_names(self) -> dict[str, str]:
        """For `renamed`."""
        return dict(self.operation.wire_names(self.body))

    async def requests(self, asked: Asked) -> list[GenerationRequest]:
        """One a prompt, however many choices it asks for. Raises any DomainError."""
        body = await self.operation.resolved(self.body, asked)
        return [replace(request, num_choices=1) for request in await self.operation.requests(body, asked)]


class PromptBodies:
    """Decodes the bodies of those of these operations that have such a field."""

    def __init__(self, operations: Sequence[Operation[Any]]) -> None:
        self._by_field = {operation.told_by: operation for operation in operations if operation.told_by}
        which = msgspec.defstruct("Which", [(name, Raw, Raw()) for name in self._by_field])
        self._which = msgspec.json.Decoder(which)

    @property
    def annotation(self) -> Any:
        """The type of all such bodies in the OpenAPI document."""
        any_body: Any = None
        for operation in self._by_field.values():
            any_body = operation.body_type if any_body is None else any_body | operation.body_type
        return any_body

    def dto(self) -> type[JsonBody]:
        """A Litestar DTO."""
        return decoded_body(self.annotation, self.decode)

    def decode(self, raw: bytes) -> PromptBody:
        """Raises InvalidRequest."""
        which = decode_json(raw, self._which)
        present = [name for name in self._by_field if bytes(getattr(which, name)) not in _ABSENT]
        if len(present) > 1:
            raise InvalidRequest(f"send {self._choice('({})')}, not both", param=present[-1])
        if not present:
            raise InvalidRequest(f"{self._choice('(of {})')} is missing", param=next(iter(self._by_field)))
        operation = self._by_field[present[0]]
        return PromptBody(operation, operation.decode(raw))

    def _choice(self, told: str) -> str:
        """`messages (a chat) or prompt (a text completion)`."""
        return " or ".join(f"{name} {told.format(operation.noun)}" for name, operation in self._by_field.items())
