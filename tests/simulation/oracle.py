"""What could be reused, worked out from the tokens of all records there are, without hashes or indexes."""

from collections.abc import Iterable, Sequence

from application.ports.block_store import BlockStore
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.write_behind import WriteBehind
from domain.ids import BlockHash, GroupIndex
from domain.models.state_layout import HitPolicy
from domain.prefix.index import ReuseRules
from domain.prefix.record import BlockKey, Namespace, Record

NO_GROUPS: frozenset[GroupIndex] = frozenset()


def stored_records(store: BlockStore, namespace: Namespace) -> list[Record]:
    """Every record of a namespace."""
    return [record for record in store.get(store.keys(namespace)) if record is not None]


def hot_records(hot: HotTier, namespace: Namespace) -> list[Record]:
    """Every record of a namespace in the hot tier."""
    return [node.record for key, node in hot._tree.nodes.items() if key.namespace == namespace]


def queued_records(writer: WriteBehind, namespace: Namespace) -> list[Record]:
    """Every record of a namespace that is on its way to the store."""
    keys = writer.queued_keys(lambda info: info.namespace == namespace)
    return [record for record in writer.queued(keys) if record is not None]


class StorageOracle:
    """Groups held at each position of each token path, over all places."""

    def __init__(self, records: Iterable[Record], rules: ReuseRules) -> None:
        self._rules = rules
        everything = list(records)
        paths: dict[BlockHash, tuple[int, ...]] = {}
        blocks = [record for record in everything if isinstance(record.key, BlockKey)]
        for record in sorted(blocks, key=lambda record: record.position):
            assert isinstance(record.key, BlockKey)
            above = paths.get(record.parent, ())
            if len(above) + len(record.key_ids) == record.position:
                paths[record.key.hash] = (*above, *record.key_ids)
        self._blocks: dict[tuple[int, ...], set[GroupIndex]] = {}
        self._snapshots: set[tuple[int, ...]] = set()
        for record in everything:
            if isinstance(record.key, BlockKey):
                if record.key.hash in paths:
                    self._blocks.setdefault(paths[record.key.hash], set()).update(record.groups)
            elif record.position == len(record.key_ids) or record.parent in paths:
                self._snapshots.add((*paths.get(record.parent, ()), *record.key_ids))

    def furthest(self, prompt: Sequence[int]) -> int:
        """The furthest position at which every group can be restored."""
        rules, tokens = self._rules, tuple(prompt)
        for position in range(len(tokens) - 1, 0, -1):
            if not rules.grid.is_resumable(position):
                continue
            if self._is_restorable(tokens[:position]):
                return position
        return 0

    def _is_restorable(self, tokens: tuple[int, ...]) -> bool:
        rules, position = self._rules, len(tokens)
        size = rules.grid.block_size
        has_snapshot = tokens in self._snapshots
        if not has_snapshot and (position % size or rules.needs_snapshots):
            return False
        for group in rules.groups:
            if group.policy is HitPolicy.SNAPSHOT:
                continue
            window = group.window if group.policy is HitPolicy.TRAILING and group.window else position
            first = max(0, position - window) // size
            for index in range(first, position // size):
                if group.index not in self._blocks.get(tokens[: (index + 1) * size], NO_GROUPS):
                    return False
        return True
