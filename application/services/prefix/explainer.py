"""Explains lookups: where a prompt leaves what is stored, and whether another fingerprint holds it.

`told` compares with what the caller read. `explain` reads indexes and ids of all tiers, never state; any thread, blocks
for the stores' reads unless told to do without them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

from application.services.prefix.live_states import LIVE
from application.services.prefix.tiers import HOT, PrefixTiers
from domain.explanation import Explanation, StopReason, compared_with_stored, nearest_fork
from domain.fingerprint import Fingerprint, shares_tenant
from domain.fork_point import ForkPoint
from domain.hashing import BlockChain, block_hash
from domain.holdings import Found
from domain.id_row import IdRow
from domain.ids import BlockHash, GroupIndex
from domain.prefix import ReuseRules
from domain.record import BlockKey, NamespaceInfo, RecordKey

MAX_FOLLOWERS = 64
"""Stored continuations that an explanation compares the prompt with."""

NUM_NEIGHBOURS = 8
"""The same for each request, in memory only; microseconds each."""


def told(
    found: Found,
    reused: Mapping[str, int],
    reason: StopReason,
    followers: Sequence[Sequence[int]],
    fork_points: Sequence[ForkPoint],
) -> Explanation:
    """`followers`: the runs of ids stored where the prompt's known blocks end."""
    explained = Explanation(found.chain.num_prompt, reason, reused, num_known=found.match.num_known)
    if reason is not StopReason.LAST_TOKEN:
        explained = compared_with_stored(explained, found.chain.prompt, followers)
    at = explained.divergence.position if explained.divergence is not None else explained.stopped_at
    return replace(explained, nearest_fork=nearest_fork(fork_points, at))


def told_from_memory(
    tiers: PrefixTiers, found: Found, reused: Mapping[str, int], reason: StopReason, forks: Sequence[ForkPoint]
) -> Explanation:
    """What memory can tell of a request; without I/O."""
    parent = found.chain.parent(found.match.num_known // found.chain.block_size)
    is_whole = reason is StopReason.LAST_TOKEN
    followers = () if is_whole else tiers.hot.followers(found.chain.namespace, parent, NUM_NEIGHBOURS)
    return told(found, reused, reason, followers, forks)


def explain(
    tiers: PrefixTiers,
    chain: BlockChain,
    forks: Sequence[ForkPoint],
    rules: ReuseRules,
    fingerprint: Fingerprint,
    info: NamespaceInfo,
    *,
    asks_stores: bool = True,
) -> Explanation:
    """What a request with this prompt would find."""
    found = tiers.match(chain, rules, tiers.find_all(chain) if asks_stores else tiers.unanswered())
    reused = _expected(tiers, found)
    live = tiers.live.find(chain, info.model, rules.grid)
    if live is not None and live.position >= found.match.position:
        found, reused = live.told(found, rules.grid), {LIVE: live.position}
    match = found.match
    parent = chain.parent(match.num_known // chain.block_size)
    followers = list[IdRow]()
    if match.reason is not StopReason.LAST_TOKEN:
        followers += tiers.hot.followers(chain.namespace, parent, MAX_FOLLOWERS)
        for tier in tiers.stored if asks_stores else ():
            followers += tier.reader.followers(chain.namespace, parent, MAX_FOLLOWERS)
    explained = told(found, reused, match.reason, followers, forks)
    if not reused and match.position == 0 and match.num_known == 0 and match.reason is StopReason.NEVER_SEEN:
        explained = _elsewhere(tiers, explained, chain, fingerprint, info)
    return explained if explained.note else replace(explained, note=_not_stored(tiers, chain, match.num_known))


def _expected(tiers: PrefixTiers, found: Found) -> dict[str, int]:
    """Tokens by the tier that they would come from."""
    needs: list[tuple[RecordKey, frozenset[GroupIndex], int]]
    needs = [(need.key, need.groups, found.chain.block_size) for need in found.match.blocks]
    if found.match.snapshot is not None:
        needs.append((found.match.snapshot, frozenset(), found.match.snapshot.num_partial))
    held = tiers.hot.held([key for key, _, _ in needs])
    names, reused = [tier.name for tier in tiers.stored], Counter[str]()
    for index, (key, groups, num_tokens) in enumerate(needs):
        here = held[index]
        is_hot = here is not None and groups <= here
        reused[HOT if is_hot else found.holder(key, index, names) or (names or [HOT])[0]] += num_tokens
    return dict(+reused)


def _not_stored(tiers: PrefixTiers, chain: BlockChain, num_known: int) -> str:
    """What the next block met on its way to a store, if it was computed lately and did not get there."""
    index = num_known // chain.block_size
    if (index + 1) * chain.block_size > chain.num_prompt:
        return ""
    key = BlockKey(chain.namespace, chain.hashes[index])
    lost = [(tier.name, tier.writer.why_lost(key)) for tier in tiers.stored if tier.writer is not None]
    return "; ".join(f"what follows was computed, and the {name} did not take it: {why}" for name, why in lost if why)


def _elsewhere(
    tiers: PrefixTiers, explained: Explanation, chain: BlockChain, fingerprint: Fingerprint, info: NamespaceInfo
) -> Explanation:
    """Whether the same tenant's first block is stored under another fingerprint, and what differs."""
    size = chain.block_size
    if chain.num_prompt < size:
        return explained
    first = chain.key_ids(0, size)
    for tier in tiers.stored:
        spaces = tier.writer.store.usage().namespaces if tier.writer is not None else ()
        others = [
            usage.info
            for usage in spaces
            if usage.info.namespace != info.namespace and shares_tenant(usage.info.fingerprint, fingerprint.salt_digest)
        ]
        keys = [BlockKey(one.namespace, block_hash(BlockHash(one.namespace), first)) for one in others]
        for other, presence in zip(others, tier.reader.lookup(keys) if keys else (), strict=True):
            if presence.is_readable:
                fields = ", ".join(_differing_fields(info.fingerprint, other.fingerprint)) or "fingerprint"
                note = f"stored by {other.model} with another {fields}"
                return replace(
                    explained, reason=StopReason.OTHER_FINGERPRINT, note=note, divergence=None, nearest_fork=None
                )
    return explained


def _differing_fields(left: str, right: str) -> list[str]:
    mine, theirs = (cast("dict[str, object]", json.loads(text)) for text in (left, right))
    return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


__all__ = ("MAX_FOLLOWERS", "NUM_NEIGHBOURS", "explain", "told", "told_from_memory")
