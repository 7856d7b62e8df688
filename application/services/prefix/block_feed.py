"""The feed of the KV events: it follows the index of one model and finds which blocks can be resumed.

    index ──changed key──► queue ──publisher's thread──► places and tokens of the record ──► PublishedBlocks ──► events

A change of the index only appends a key. The publisher's thread looks up where the record is by then, and reads its
tokens from memory or from the store, so a key that is noted twice is looked up twice and nothing else. A queue that
becomes too long is dropped, and everything is looked up again.

Events name no model. So one model is followed: the first that is loaded, and later only one of the same name. Other
namespaces are never followed, those with a salt or an adapter in particular, and no event can come from them. Live
states are not published: one request can take each, and what they hold is in the hot tier or in the store as well.
"""

from collections import deque
from collections.abc import Sequence
from itertools import islice

from application.services.prefix.tiers import PrefixTiers
from domain.ids import GroupIndex
from domain.prefix.index import PrefixIndex, ReuseRules
from domain.prefix.published_blocks import BlockEvent, BlocksCleared, PublishedBlocks
from domain.prefix.record import NamespaceInfo, RecordKey

MAX_NOTED = 65_536
"""Changes that wait for the publisher's thread; with more, all is looked up again."""

KEYS_AT_ONCE = 256

_NO_STATE = frozenset[GroupIndex]()


class BlockFeed:
    """The feed. `follow` belongs to the compute thread, `changes` and `state` to the publisher's. `block_size`: of the
    announced blocks."""

    def __init__(self, tiers: PrefixTiers, block_size: int) -> None:
        self._tiers, self._block_size = tiers, block_size
        self._model: str | None = None
        self._wanted: tuple[NamespaceInfo, ReuseRules] | None = None
        self._noted: deque[RecordKey] = deque()
        self._has_lost = False
        # Of the publisher's thread. The epoch is held, or the index of an idle namespace might be forgotten.
        self._epoch: PrefixIndex | None = None
        self._rules: ReuseRules | None = None
        self._published: PublishedBlocks | None = None
        self._todo: dict[RecordKey, None] = {}

    def follow(self, info: NamespaceInfo, rules: ReuseRules) -> None:
        """Tells of a model that was loaded, by the namespace of requests without a salt, if its name is the first."""
        self._model = self._model or info.model
        if info.model == self._model:
            self._wanted = info, rules

    @property
    def is_behind(self) -> bool:
        return bool(self._todo or self._noted or self._has_lost)

    def changes(self) -> Sequence[BlockEvent]:
        events: list[BlockEvent] = []
        if (followed := self._followed(events)) is None:
            return events
        epoch, published = followed
        if self._has_lost:
            self._noted.clear()
            self._has_lost = False
            self._todo |= dict.fromkeys(published.keys()) | dict.fromkeys(self._tiers.indexes.keys(epoch))
        while self._noted and len(self._todo) < KEYS_AT_ONCE:
            self._todo[self._noted.popleft()] = None
        keys = list(islice(self._todo, KEYS_AT_ONCE))
        for key in keys:
            del self._todo[key]
        self._look_up(published, keys)
        return [*events, *published.changes()]

    def state(self) -> Sequence[BlockEvent]:
        return [BlocksCleared(), *(self._published.state() if self._published is not None else ())]

    def _followed(self, events: list[BlockEvent]) -> tuple[PrefixIndex, PublishedBlocks] | None:
        """Returns what is followed now; begins anew with another model or epoch. None before the first."""
        if self._wanted is None:
            return None
        info, rules = self._wanted
        epoch, published = self._epoch, self._published
        if (
            epoch is None
            or published is None
            or epoch.is_over
            or (epoch.namespace, self._rules) != (info.namespace, rules)
        ):
            if epoch is not None:
                epoch.note_changed = None
            self._epoch = epoch = self._tiers.indexes.epoch(info)
            self._rules, self._published = (
                rules,
                (published := PublishedBlocks(info.namespace, rules, self._block_size)),
            )
            self._todo.clear()
            epoch.note_changed, self._has_lost = self._note, True
            events.append(BlocksCleared())
        return epoch, published

    def _note(self, key: RecordKey) -> None:
        """Called by the index, with its lock held."""
        if self._has_lost:
            return
        if len(self._noted) < MAX_NOTED:
            self._noted.append(key)
        else:
            self._has_lost = True

    def _look_up(self, published: PublishedBlocks, keys: Sequence[RecordKey]) -> None:
        writer, fresh = self._tiers.store.writer, dict[RecordKey, int]()
        for key, places in zip(keys, self._tiers.indexes.places(keys), strict=True):
            if not places or published.knows(key):
                published.move(key, places)
            else:
                fresh[key] = places
        found = dict(zip(fresh, self._tiers.hot.get(list(fresh)), strict=True))
        absent = [key for key, record in found.items() if record is None]
        if absent and writer is not None:
            found |= zip(absent, writer.get(absent, [_NO_STATE] * len(absent)), strict=True)
        for key, record in found.items():
            if record is not None:  # else it went meanwhile, which is noted, or it cannot be read
                published.add(record, fresh[key])
