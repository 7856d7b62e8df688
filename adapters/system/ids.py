"""Unguessable identifiers and seeds from the operating system's entropy."""

import secrets

from domain.ids import RequestId


class RandomIds:
    """An IdSource."""

    def request_id(self, prefix: str) -> RequestId:
        return RequestId(f"{prefix}-{secrets.token_hex(12)}")

    def call_id(self) -> str:
        return f"call_{secrets.token_hex(12)}"

    def seed(self) -> int:
        return secrets.randbits(63)
