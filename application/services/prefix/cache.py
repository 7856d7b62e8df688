"""The prefix cache of an engine: its models, its sequences, and explanations of what a prompt would reuse.

`begin` gives every submitted sequence its PrefixSession, which does everything else. A model whose layout cannot be
captured takes part too: its sequences reuse nothing and say why. `attach`, `detach`, `begin` and `tidy` belong to the
compute thread; the rest may be called from any thread.
"""

from collections.abc import Callable
from functools import reduce

from application.ports.cache_stats import Cleared
from application.services.memory_leases import MemoryLeases
from application.services.prefix.block_feed import BlockFeed
from application.services.prefix.explainer import explain
from application.services.prefix.no_reuse import NoReuse
from application.services.prefix.session import PrefixSession
from application.services.prefix.tiers import PrefixTiers
from domain.errors import ModelNotFound
from domain.ids import ModelId, RequestId, SequenceId
from domain.models.model_card import ModelDescription
from domain.prefix.explanation import Explanation, StopReason
from domain.prefix.fingerprint import Fingerprint, NamespaceFilter, tenant_salt
from domain.prefix.hashing import BlockChain
from domain.prefix.index import STORED, ReuseRules
from domain.prefix.prompt_content import BlockGrid, EncodedPrompt
from domain.prefix.record import NamespaceInfo


class PrefixCache:
    """The prefix cache as the engine uses it. See the module docstring for threads. `tiers`: for readings of them.
    `num_cleared`: calls of `clear`."""

    def __init__(
        self,
        tiers: PrefixTiers,
        grid: BlockGrid,
        *,
        is_enabled: bool = True,
        salt: str = "",
        feed: BlockFeed | None = None,
    ) -> None:
        """`salt`: the server's own; it enters every namespace together with the model's and the request's. `feed`: the
        feed of other programs; None: nobody is published."""
        self.tiers = tiers
        self._grid = grid
        self._is_enabled = is_enabled
        self._salt = salt
        self._feed = feed
        self._models: dict[ModelId, ModelDescription] = {}
        self._model_salts: dict[ModelId, str] = {}
        self.num_cleared = 0

    def wake_with(self, on_ready: Callable[[], None]) -> None:
        """Call `on_ready` from workers when a lookup or a fetch made progress: the engine loop may be idle then."""
        self.tiers.on_ready = on_ready

    def attach(self, model: ModelDescription, salt: str = "") -> str:
        """Register a loaded model. `salt`: its own. Returns the reason for which its prompts are never reused; empty
        when they are."""
        self._models[model.id] = model
        self._model_salts[model.id] = salt
        note = self.note(model)
        if not note:  # read while the rest of the model is made ready, for requests without a salt
            own_salt = self._tenant(model.id, "")
            info = self._info(model, own_salt)
            self.tiers.load(self.tiers.indexes.epoch(info))
            if self._feed is not None and not own_salt and not model.adapter_digest:
                self._feed.follow(info, self._rules(model))
        return note

    def detach(self, id: ModelId) -> None:
        """Unregister a model that is about to be unloaded. What is stored of it stays."""
        self._models.pop(id, None)
        self.tiers.live.drop_model(str(id))

    def note(self, model: ModelDescription) -> str:
        """The reason for which a model's prompts are never reused; empty when they are."""
        if not self._is_enabled:
            return "prefix reuse is off"
        if model.layout.is_reusable:
            return model.reuse_note
        classes = ", ".join(model.layout.unsupported)
        return f"its cache cannot be captured ({classes})" if classes else "it keeps no state between tokens"

    def begin(
        self,
        id: SequenceId,
        request_id: RequestId,
        model: ModelId,
        prompt: EncodedPrompt,
        salt: str = "",
        *,
        persist: bool = True,
        restores: bool = True,
    ) -> PrefixSession | NoReuse:
        """Begin the lookup of a prompt. Returns at once, and fetches nothing yet: see `PrefixSession.prepare`.

        `persist` False: what is computed for this sequence is kept in memory only. `restores` False: it computes its
        whole prompt, and keeps what is not kept yet for others.
        """
        described = self._models.get(model)
        if described is None or self.note(described):
            return NoReuse(self._no_reuse(described, prompt))
        return PrefixSession(
            self.tiers,
            id,
            request_id,
            prompt,
            self._info(described, self._tenant(model, salt)),
            self._rules(described),
            persist=persist,
            restores=restores,
            shape=described.memory,
        )

    def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str = "", *, asks_store: bool = True) -> Explanation:
        """The explanation that a request with this prompt would get, without computing anything. Reads the store: call
        it in `store.answer`; without `asks_store` it does not, as a request while the store does not answer. Raises
        ModelNotFound for a model that is not loaded."""
        described = self._described(model)
        if self.note(described):
            return self._no_reuse(described, prompt)
        salt = self._tenant(model, salt)
        info, rules = self._info(described, salt), self._rules(described)
        chain = BlockChain.of(info.namespace, self._grid.block_size, prompt)
        return explain(self.tiers, chain, prompt.fork_points, rules, info, asks_store=asks_store)

    def num_stored(self, model: ModelId, prompt: EncodedPrompt, salt: str = "") -> int | None:
        """The position at which the prompt could be resumed after a restart, from what the store holds now. None when
        nothing is persisted. Reads the store and raises as `explain`."""
        described = self._described(model)
        if self.tiers.store.writer is None or self.note(described):
            return None
        info = self._info(described, self._tenant(model, salt))
        indexes, rules = self.tiers.indexes, self._rules(described)
        epoch, chain = indexes.epoch(info), BlockChain.of(info.namespace, self._grid.block_size, prompt)
        indexes.load(epoch)
        return indexes.match(epoch, chain, rules, place=STORED).position

    def clear(self, model: str | None, salt: str | None) -> Cleared:
        """Remove for good what is kept of a model, of a request's salt, or of any (None), in memory and in the store.

        A request that runs meanwhile is answered as usual, and nothing of it is kept. A request's salt is combined with
        the salts of all models that were loaded since the start. Blocks, perhaps for long: not on the event loop.
        """
        own_salts = {self._salt, *map(self._server_salt, tuple(self._model_salts))} if salt is not None else {""}
        self.num_cleared += 1
        choices = [NamespaceFilter.of(model, salt, own) for own in sorted(own_salts)]
        return reduce(Cleared.plus, [self.tiers.clear(choice) for choice in choices])

    @property
    def memory(self) -> MemoryLeases:
        """The leases of everything that is about to hold memory; compute thread only."""
        return self.tiers.memory

    def tidy(self) -> None:
        """Once a step, on the compute thread: free the live states of what was cleared."""
        self.tiers.live.sweep()

    def _tenant(self, model: ModelId, requested: str) -> str:
        return tenant_salt(self._server_salt(model), requested)

    def _server_salt(self, model: ModelId) -> str:
        """The salt that the server adds to the salts of requests for this model."""
        own = self._model_salts.get(model, "")
        return tenant_salt(self._salt, own) if own else self._salt

    def _described(self, model: ModelId) -> ModelDescription:
        described = self._models.get(model)
        if described is None:
            raise ModelNotFound(f"model {model} is not loaded", param="model")
        return described

    def _rules(self, model: ModelDescription) -> ReuseRules:
        return ReuseRules.of(model.layout, self._grid.of_model(model.chunking), image_is_whole=model.image_is_whole)

    def _no_reuse(self, model: ModelDescription | None, prompt: EncodedPrompt) -> Explanation:
        unsupported = model is not None and self._is_enabled
        reason = StopReason.UNSUPPORTED_LAYOUT if unsupported else StopReason.DISABLED
        return Explanation(len(prompt.token_ids), reason, note=self.note(model) if model is not None else "")

    def _info(self, model: ModelDescription, salt: str) -> NamespaceInfo:
        fingerprint = Fingerprint.of(model, self._grid.of_model(model.chunking), salt)
        return NamespaceInfo(fingerprint.namespace(), str(model.id), fingerprint.canonical_json())
