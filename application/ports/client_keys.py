"""The keys of a running server's clients, for an admin."""

from collections.abc import Sequence
from typing import Protocol

from domain.client import Client


class ClientKeys(Protocol):
    """Event loop only. Each method that changes keys raises InvalidRequest where there is no file of keys or it cannot
    be used, and changes nothing then."""

    def listed(self) -> Sequence[Client]:
        """Returns the clients that the server knows: that of its settings, and those of its file."""
        ...

    async def add(self, client: Client) -> str:
        """Makes a key and a salt for a client without both, and returns the key, which is kept nowhere. It is valid
        from then on."""
        ...

    async def remove(self, name: str) -> None:
        """Removes a client of the file. Its key is not valid from then on."""
        ...
