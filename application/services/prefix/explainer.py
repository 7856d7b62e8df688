"""Explains lookups: where a prompt leaves what is kept, and whether another fingerprint holds it.

What is kept, and where, is read from the index, as by every lookup. Only the tokens at which a prompt parts from what
is stored are on the disk, and whether another namespace holds its first block: `explain` reads those if it may.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from application.ports.block_store import BlockStore
from application.services.prefix.live_states import LIVE, Continuation
from application.services.prefix.tiers import HOT, PrefixTiers
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.explanation import Explanation, StopReason, compared_with_stored, nearest_fork
from domain.prefix.fingerprint import Fingerprint, shares_tenant
from domain.prefix.fork_point import ForkPoint
from domain.prefix.hashing import BlockChain, block_hash
from domain.prefix.match import PrefixMatch, ReuseRules
from domain.prefix.record import BlockKey, NamespaceInfo, RecordKey

MAX_FOLLOWERS = 64
"""Stored continuations that an explanation compares the prompt with."""

NUM_NEIGHBOURS = 8
"""The same for each request, in memory only; microseconds each."""

NO_STATE: frozenset[GroupIndex] = frozenset()


def explained(
    tiers: PrefixTiers,
    chain: BlockChain,
    match: PrefixMatch,
    reused: Mapping[str, int],
    forks: Sequence[ForkPoint],
    store: BlockStore | None = None,
) -> Explanation:
    """What was reused and why no more, from memory; with a `store`, also from what that holds, which blocks."""
    found = Explanation(chain.num_prompt, match.reason, reused, num_known=match.num_known)
    if match.reason is not StopReason.LAST_TOKEN:
        parent, limit = chain.parent(match.num_known // chain.block_size), MAX_FOLLOWERS if store else NUM_NEIGHBOURS
        followers: list[IdRow] = tiers.hot.followers(chain.namespace, parent, limit)
        if store is not None:
            followers += store.followers(chain.namespace, parent, limit)
        found = compared_with_stored(found, chain.prompt, followers)
    at = found.divergence.position if found.divergence is not None else found.stopped_at
    return replace(found, nearest_fork=nearest_fork(forks, at))


def explain(
    tiers: PrefixTiers,
    chain: BlockChain,
    forks: Sequence[ForkPoint],
    rules: ReuseRules,
    fingerprint: Fingerprint,
    info: NamespaceInfo,
    *,
    asks_store: bool = True,
) -> Explanation:
    """What a request with this prompt would find. Any thread; with `asks_store` it blocks for the store's reads."""
    epoch, store = tiers.epoch(info), tiers.store.writer.store if tiers.store is not None and asks_store else None
    if store is not None:
        tiers.indexes.load(epoch)
    match = tiers.match(epoch, chain, rules)
    live = tiers.live.find(chain, info.model, rules.grid)
    if live is not None and live.position >= match.position:
        match = live.told(chain, match, rules.grid)
    told = explained(tiers, chain, match, _expected(tiers, chain, match, live), forks, store)
    if store is not None and not told.reused and not match.num_known and match.reason is StopReason.NEVER_SEEN:
        told = _elsewhere(store, told, chain, fingerprint, info)
    return told if told.note else replace(told, note=_not_stored(tiers, chain, match.num_known))


def _expected(tiers: PrefixTiers, chain: BlockChain, match: PrefixMatch, live: Continuation | None) -> dict[str, int]:
    """Tokens by the tier that they would come from."""
    if live is not None and live.position >= match.position:
        return {LIVE: live.position}
    needs = [(need.groups, chain.block_size) for need in match.blocks]
    keys: list[RecordKey] = [need.key for need in match.blocks]
    if match.snapshot is not None:
        keys.append(match.snapshot)
        needs.append((NO_STATE, match.snapshot.num_partial))
    reused, cold = Counter[str](), tiers.store.name if tiers.store is not None else HOT
    for (groups, num_tokens), held in zip(needs, tiers.hot.held(keys), strict=True):
        reused[HOT if held is not None and groups <= held else cold] += num_tokens
    return dict(+reused)


def _not_stored(tiers: PrefixTiers, chain: BlockChain, num_known: int) -> str:
    """What the next block met on its way to the store, if it was computed lately and did not get there."""
    index = num_known // chain.block_size
    if tiers.store is None or (index + 1) * chain.block_size > chain.num_prompt:
        return ""
    why = tiers.store.writer.loss_reason(BlockKey(chain.namespace, chain.hashes[index]))
    return f"what follows was computed, and the {tiers.store.name} did not take it: {why}" if why else ""


def _elsewhere(
    store: BlockStore, told: Explanation, chain: BlockChain, fingerprint: Fingerprint, info: NamespaceInfo
) -> Explanation:
    """Whether the same tenant's first block is stored under another fingerprint, and what differs."""
    size = chain.block_size
    if chain.num_prompt < size:
        return told
    others = [
        usage.info
        for usage in store.usage().namespaces
        if usage.info.namespace != info.namespace and shares_tenant(usage.info.fingerprint, fingerprint.salt_digest)
    ]
    first = chain.key_ids(0, size)
    keys = [BlockKey(one.namespace, block_hash(BlockHash(one.namespace), first)) for one in others]
    for other, record in zip(others, store.get(keys, [NO_STATE] * len(keys)) if keys else (), strict=True):
        if record is not None:
            fields = ", ".join(_differing_fields(info.fingerprint, other.fingerprint)) or "fingerprint"
            note = f"stored by {other.model} with another {fields}"
            return replace(told, reason=StopReason.OTHER_FINGERPRINT, note=note, divergence=None, nearest_fork=None)
    return told


def _differing_fields(left: str, right: str) -> list[str]:
    mine, theirs = (cast("dict[str, object]", json.loads(text)) for text in (left, right))
    return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
