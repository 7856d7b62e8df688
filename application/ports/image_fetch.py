"""Fetching images that requests name by URL."""

from typing import Protocol


class FetchImage(Protocol):
    """Fetches a file from one of the hosts that the operator allows. Any thread; blocking, with a deadline of its own.

    Connects to public addresses only, whatever a name server says, so that no client reaches what only this machine
    can reach."""

    def __call__(self, url: str, field: str, max_bytes: int) -> bytes:
        """Returns the file, of at most `max_bytes`. Raises InvalidRequest that names `field`."""
        ...
