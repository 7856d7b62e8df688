"""A subscriber of KV events: the picture that it has of a server, as the consumers keep it."""

from collections.abc import Iterable

from domain.prefix.published_blocks import BlockEvent, BlocksRemoved, BlocksStored, Medium


class Picture:
    """`blocks`: the token prefixes that end with a published block, each with the media that it was published with."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._paths: dict[bytes, tuple[int, ...]] = {}
        self.held: set[tuple[bytes, Medium]] = set()

    def apply(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            match event:
                case BlocksStored():
                    assert len(event.token_ids) == self._size * len(event.hashes) > 0
                    path = () if event.parent is None else self._paths[event.parent]  # a parent is published before
                    for at, hash in enumerate(event.hashes):
                        path += tuple(event.token_ids[at * self._size : (at + 1) * self._size])
                        assert self._paths.setdefault(hash, path) == path
                        assert (hash, event.medium) not in self.held
                        self.held.add((hash, event.medium))
                case BlocksRemoved():
                    assert event.hashes
                    self.held.difference_update((hash, event.medium) for hash in event.hashes)
                    there = {hash for hash, _ in self.held}
                    self._paths = {hash: path for hash, path in self._paths.items() if hash in there}
                case _:
                    self.held.clear()
                    self._paths.clear()

    @property
    def blocks(self) -> dict[tuple[int, ...], set[Medium]]:
        found: dict[tuple[int, ...], set[Medium]] = {}
        for hash, medium in self.held:
            found.setdefault(self._paths[hash], set()).add(medium)
        return found
