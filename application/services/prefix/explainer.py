"""Explanations of lookups: the position at which a prompt diverges from kept records, and whether another fingerprint
has them.

The places of records are read from the index, as by every lookup. The store is read only for the tokens at which a
prompt diverges from stored records, and for the prompt's first block in other namespaces.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from application.ports.block_store import BlockStore
from application.services.prefix.shared.tier import SharedTier
from application.services.prefix.tiers import PrefixTiers
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix.explanation import Explanation, StopReason, compared_with_stored, nearest_fork
from domain.prefix.fingerprint import shares_tenant, tenant_of
from domain.prefix.hashing import BlockChain, block_hash
from domain.prefix.index import PERSISTED, PrefixMatch, ReuseRules
from domain.prefix.prompt_content import BlockGrid, ForkPoint
from domain.prefix.record import BlockKey, NamespaceInfo, RecordKey

MAX_FOLLOWERS = 64
"""Stored continuations that an explanation compares the prompt with."""

NUM_NEIGHBOURS = 8
"""Records in memory that the explanation of each request compares the prompt with; microseconds each."""

NO_STATE: frozenset[GroupIndex] = frozenset()


def explained(
    tiers: PrefixTiers,
    chain: BlockChain,
    match: PrefixMatch,
    reused: Mapping[str, int],
    forks: Sequence[ForkPoint],
    store: BlockStore | None = None,
) -> Explanation:
    """Explains from memory what was reused and why no more. With a `store`, the store is read too, which blocks."""
    found = Explanation(chain.num_prompt, match.reason, reused, num_known=match.num_known)
    if match.reason is not StopReason.LAST_TOKEN:
        parent, limit = chain.parent(match.num_known // chain.block_size), MAX_FOLLOWERS if store else NUM_NEIGHBOURS
        followers: list[IdRow] = tiers.hot.followers(chain.namespace, parent, limit)
        if store is not None:
            followers += store.followers(chain.namespace, parent, limit)
        found = compared_with_stored(found, chain.prompt, followers, chain.media)
    at = found.divergence.position if found.divergence is not None else found.stopped_at
    return replace(found, nearest_fork=nearest_fork(forks, at))


def explain(
    tiers: PrefixTiers,
    chain: BlockChain,
    forks: Sequence[ForkPoint],
    rules: ReuseRules,
    info: NamespaceInfo,
    *,
    asks_store: bool = True,
) -> Explanation:
    """The explanation that a request with this prompt would get. Any thread; with `asks_store` it blocks for reads."""
    epoch, writer = tiers.indexes.epoch(info), tiers.store.writer
    store = writer.store if writer is not None and asks_store else None
    if store is not None:
        tiers.indexes.load(epoch)
    match, hints = tiers.indexes.match(epoch, chain, rules), frozenset[RecordKey]()
    shared = tiers.shared if asks_store else None
    if shared is not None and shared.is_available and match.position < rules.grid.furthest(chain.num_prompt):
        finds = shared.find(chain, match, rules)
        match, hints = tiers.indexes.match(epoch, chain, rules, shared=finds.records), frozenset(finds.hints)
    live = tiers.live.find(chain, info.model, rules.grid)
    if live is not None and live[1] >= match.position:
        match = match_with_live(match, live[1], chain, rules.grid)
        reused = {tiers.live.name: live[1]}
    else:
        cold = tiers.store.name if tiers.store.writer is not None else tiers.hot.name
        reused = dict[str, int]()
        places = tiers.indexes.places([need.key for need in match.needs])
        for need, is_hot, place in zip(match.needs, tiers.hot.holds(match.needs), places, strict=True):
            is_far = need.key in hints and not place & PERSISTED
            tier = tiers.hot.name if is_hot else SharedTier.name if is_far else cold
            reused[tier] = reused.get(tier, 0) + need.num_tokens
        reused = {tier: number for tier, number in reused.items() if number}
    found = explained(tiers, chain, match, reused, forks, store)
    if store is not None and not found.reused and not match.num_known and match.reason is StopReason.NEVER_SEEN:
        found = _elsewhere(store, found, chain, info)
    if shared is not None and not shared.is_available and match.reason is not StopReason.LAST_TOKEN:
        return replace(found, note=found.note or "the shared store is not asked at present: it failed or is cleared")
    return found if found.note else replace(found, note=_not_stored(tiers, chain, match.num_known))


def match_with_live(match: PrefixMatch, position: int, chain: BlockChain, grid: BlockGrid) -> PrefixMatch:
    """Returns the match of records as an explanation shows it for a live state that reaches `position`, at least as
    far: the prompt is known at least up to there, and reuse ends where the two token streams diverge."""
    size = chain.block_size
    reason = match.reason if position == match.position else StopReason.NEVER_SEEN
    if position == grid.furthest(chain.num_prompt):
        reason = StopReason.OFF_GRID if grid.is_exact else StopReason.LAST_TOKEN
    return replace(match, reason=reason, num_known=max(match.num_known, position // size * size))


def _not_stored(tiers: PrefixTiers, chain: BlockChain, num_known: int) -> str:
    """Returns the reason why the next block was computed recently and is not in the store; empty for none."""
    index = num_known // chain.block_size
    if tiers.store.writer is None or (index + 1) * chain.block_size > chain.num_prompt:
        return ""
    why = tiers.store.writer.loss_reason(BlockKey(chain.namespace, chain.hashes[index]))
    return f"what follows was computed, and the {tiers.store.name} did not take it: {why}" if why else ""


def _elsewhere(store: BlockStore, found: Explanation, chain: BlockChain, info: NamespaceInfo) -> Explanation:
    """The explanation, changed to OTHER_FINGERPRINT where the same tenant has stored the first block for this model
    under one; its note names the fields that differ."""
    size = chain.block_size
    if chain.num_prompt < size:
        return found
    others = [
        usage.info
        for usage in store.usage().namespaces
        if usage.info.namespace != info.namespace and shares_tenant(usage.info.fingerprint, tenant_of(info.fingerprint))
        if usage.info.model == info.model
        or "weights" not in _differing_fields(info.fingerprint, usage.info.fingerprint)
    ]
    first, digests = chain.key_ids(0, size), chain.digests(0, size)
    keys = [BlockKey(one.namespace, block_hash(BlockHash(one.namespace), first, digests)) for one in others]
    for other, record in zip(others, store.get(keys, [NO_STATE] * len(keys)) if keys else (), strict=True):
        if record is not None:
            fields = ", ".join(_differing_fields(info.fingerprint, other.fingerprint)) or "fingerprint"
            note = f"stored by {other.model} with another {fields}"
            return replace(found, reason=StopReason.OTHER_FINGERPRINT, note=note, divergence=None, nearest_fork=None)
    return found


def _differing_fields(left: str, right: str) -> list[str]:
    mine, theirs = (cast("dict[str, object]", json.loads(text)) for text in (left, right))
    return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
