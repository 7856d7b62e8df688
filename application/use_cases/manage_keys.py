"""The keys of a server, listed, added and revoked by an admin who has one, or by anybody on a server without keys.

Invariants: an admin whose own key is limited to some models or tool servers changes no keys, which might do more;
nobody revokes the key that is used for it, so that one admin is left.
"""

from collections.abc import Sequence

from application.ports.client_keys import ClientKeys
from domain.client import DEFAULT_NAME, Client
from domain.errors import InvalidRequest


class ManageKeys:
    """Event loop only."""

    def __init__(self, keys: ClientKeys) -> None:
        self._keys = keys

    def listed(self) -> Sequence[Client]:
        return self._keys.listed()

    async def add(self, client: Client, by: Client) -> str:
        """Adds a client and returns its key, the only time that it is known. Raises NotAllowed and InvalidRequest."""
        by.check_whole()
        return await self._keys.add(client)

    async def revoke(self, name: str, by: Client) -> None:
        """Raises NotAllowed and InvalidRequest."""
        by.check_whole()
        if name == by.name:
            raise InvalidRequest("this key is the one that you use: revoke it with another one", param="name")
        if name == DEFAULT_NAME:
            raise InvalidRequest("this key is server.api_key: change it in the settings and restart", param="name")
        await self._keys.remove(name)
