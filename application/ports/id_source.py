"""Identifiers and seeds that must not repeat, as a port, so that tests own them."""

from typing import Protocol

from domain.ids import RequestId


class IdSource(Protocol):
    """Any thread."""

    def request_id(self, prefix: str) -> RequestId:
        """A new id such as `chatcmpl-5f0c...`; unguessable."""
        ...

    def call_id(self) -> str:
        """A new id of a tool call: `call_` and 24 hexadecimal digits; unguessable."""
        ...

    def seed(self) -> int:
        """A fresh sampling seed, 0 <= seed < 2**63."""
        ...
