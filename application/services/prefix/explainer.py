"""Explains a lookup in full: where the prompt leaves what is stored, and whether another fingerprint holds it.

Reads indexes and token ids, never state. Any thread; blocks for the store's reads, unless told to do without them.
"""

import json
from dataclasses import replace
from typing import cast

from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.tiers import Lookup, PrefixTiers, StoredPrefix
from domain.explanation import Explanation, StopReason, compared_with_stored, nearest_fork
from domain.fingerprint import Fingerprint, shares_tenant
from domain.hashing import BlockChain, block_hash
from domain.ids import BlockHash
from domain.prefix import ReuseRules
from domain.record import BlockKey, NamespaceInfo

MAX_FOLLOWERS = 64
"""Stored continuations compared with the prompt."""


class PrefixExplainer:
    """See the module docstring."""

    def __init__(self, tiers: PrefixTiers) -> None:
        self._tiers = tiers

    def explain(
        self,
        prompt: EncodedPrompt,
        info: NamespaceInfo,
        rules: ReuseRules,
        fingerprint: Fingerprint,
        *,
        asks_store: bool = True,
    ) -> Explanation:
        chain = BlockChain(info.namespace, rules.block_size)
        chain.feed(prompt.token_ids)
        stored = self._stored(prompt, chain) if asks_store else None
        lookup = self._tiers.match(prompt.token_ids, chain, rules, stored)
        match = lookup.match
        num_hot = self._hot_tokens(lookup, rules)
        explained = Explanation(
            len(prompt.token_ids), num_hot, match.position - num_hot, match.reason, num_known=match.num_known
        )
        if match.reason is not StopReason.LAST_TOKEN:
            followers = self._followers(chain, match.num_known, asks_store=asks_store)
            explained = compared_with_stored(explained, prompt.token_ids, followers)
        if match.position == 0 and match.num_known == 0 and match.reason is StopReason.NEVER_SEEN:
            explained = self._elsewhere(explained, prompt, info, fingerprint)
        at = explained.divergence.position if explained.divergence is not None else match.position
        return replace(explained, nearest_fork=nearest_fork(prompt.fork_points, at))

    def _stored(self, prompt: EncodedPrompt, chain: BlockChain) -> StoredPrefix:
        return self._tiers.read_stored(prompt.token_ids, chain.namespace, chain.hashes, chain.block_size)

    def _hot_tokens(self, lookup: Lookup, rules: ReuseRules) -> int:
        match = lookup.match
        held = self._tiers.hot.held([need.key for need in match.blocks])
        hot = sum(
            rules.block_size
            for need, groups in zip(match.blocks, held, strict=True)
            if groups is not None and need.groups <= groups
        )
        if match.snapshot is not None and self._tiers.hot.held([match.snapshot])[0] is not None:
            hot += match.snapshot.num_partial
        return hot

    def _followers(self, chain: BlockChain, start: int, *, asks_store: bool) -> list[tuple[int, ...]]:
        """The token runs stored after the first `start` tokens."""
        parent = chain.parent(start // chain.block_size)
        stored: list[tuple[int, ...]] = self._tiers.hot.followers(chain.namespace, parent, MAX_FOLLOWERS)
        if asks_store and self._tiers.store is not None:
            stored += self._tiers.store.followers(chain.namespace, parent, MAX_FOLLOWERS)
        return stored

    def _elsewhere(
        self, explained: Explanation, prompt: EncodedPrompt, info: NamespaceInfo, fingerprint: Fingerprint
    ) -> Explanation:
        """Whether the same tenant's first block is stored under another fingerprint, and what differs."""
        first = prompt.token_ids[: fingerprint.block_size]
        queue = self._tiers.queue
        if queue is None or len(first) < fingerprint.block_size:
            return explained
        others = [
            usage.info
            for usage in queue.store.usage().namespaces
            if usage.info.namespace != info.namespace and shares_tenant(usage.info.fingerprint, fingerprint.salt_digest)
        ]
        keys = [BlockKey(other.namespace, block_hash(BlockHash(other.namespace), first)) for other in others]
        for other, presence in zip(others, queue.lookup(keys) if keys else (), strict=True):
            if presence.is_readable:
                fields = ", ".join(_differing_fields(info.fingerprint, other.fingerprint)) or "fingerprint"
                note = f"stored by {other.model} with another {fields}"
                return replace(explained, reason=StopReason.OTHER_FINGERPRINT, note=note, divergence=None)
        return explained


def _differing_fields(left: str, right: str) -> list[str]:
    mine, theirs = (cast("dict[str, object]", json.loads(text)) for text in (left, right))
    return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


__all__ = ("PrefixExplainer",)
