"""A network with a drafter of its own, which behaves as the network alone does.

Its caches are the trunk's followed by the drafter's, and each pass feeds both: prefill, decoding and verification
alike. So the drafter's state always stands at the sequence's own position, and is captured, stored, restored,
joined and trimmed like every other leaf. Only `propose` runs the drafter ahead, and undoes that before it returns.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, live_arrays, new_caches
from adapters.mlx.caches.rollback import Rollback
from adapters.mlx.caches.rows import make_room
from adapters.mlx.caches.views import shifted, viewed
from adapters.mlx.runtime.arrays import computed_after
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from domain.speculation.drafter import Drafter

nn: Any = mlx_lm_module("utils").nn
"""MLX's modules."""

Choose = Callable[[mx.array, int], mx.array]
"""Maps logits [rows, vocab] and a number of positions behind the next one to tokens uint32 [rows]; records nothing."""

Propose = Callable[[mx.array, Caches, int, Choose, Sequence[int]], mx.array]
"""`DraftingNetwork.propose`."""


class DraftingNetwork(nn.Module):  # type: ignore[misc]
    """A trunk and a drafter as one network. Compute thread only.

    A module of both, so that parameters are counted, cast and evaluated together."""

    drafter: Drafter

    def __init__(self, trunk: Any) -> None:
        nn.Module.__init__(self)
        self.trunk = trunk
        self._num_trunk_caches = len(new_caches(trunk))

    def make_cache(self) -> Caches:
        """Fresh plain caches: the trunk's, then the drafter's."""
        trunk = new_caches(self.trunk)
        return [*trunk, *self._own_caches(trunk)]

    def __call__(self, tokens: mx.array, cache: Caches, input_embeddings: mx.array | None = None) -> mx.array:
        """Feeds tokens [rows, length], or embeddings in their place; returns the trunk's logits [rows, length, vocab].
        Lazy: the logits depend on the drafter's state, so that its graph does not grow from step to step."""
        at = self._num_trunk_caches
        logits = self._feed(tokens, cache[:at], cache[at:], input_embeddings)
        return computed_after(logits, live_arrays(map(viewed, cache[at:])))

    def propose(
        self, tokens: mx.array, caches: Caches, depth: int, choose: Choose, shifts: Sequence[int] = ()
    ) -> mx.array:
        """Returns the tokens uint32 [rows, depth] that the drafter expects behind `tokens` [rows, 1], which are not fed
        yet; lazy. The caches are as before afterwards. `shifts`: of the rows' positions."""
        fed, hidden = self._begin(caches[self._num_trunk_caches :])
        rollback = Rollback(fed)
        make_room(fed, depth)
        found: list[mx.array] = []
        for ahead in range(depth):
            logits, hidden = self._step(tokens, hidden, shifted(fed, shifts))
            tokens = choose(logits[:, -1], ahead)[:, None]
            found.append(tokens)
        rollback.undo(depth, 0)
        return mx.concatenate(found, axis=1)

    def _own_caches(self, trunk: Caches) -> Caches:
        """Fresh plain caches of the drafter, given fresh ones of the trunk."""
        raise NotImplementedError

    def _feed(self, tokens: mx.array, trunk: Caches, own: Caches, embeddings: mx.array | None) -> mx.array:
        """Runs the trunk and feeds the drafter's caches; returns the trunk's logits."""
        raise NotImplementedError

    def _begin(self, own: Caches) -> tuple[Caches, mx.array | None]:
        """The caches that `_step` feeds, and the hidden state that it starts from, if it has one."""
        return own, None

    def _step(self, tokens: mx.array, hidden: mx.array | None, fed: Caches) -> tuple[mx.array, mx.array | None]:
        """Feeds the drafter tokens [rows, 1]; returns its logits [rows, 1, vocab] and its hidden state."""
        raise NotImplementedError


class DraftModelNetwork(DraftingNetwork):
    """A trunk with a smaller model of the same vocabulary, which is fed the same tokens at the same positions."""

    drafter = Drafter.DRAFT_MODEL

    def __init__(self, trunk: Any, draft: Any) -> None:
        super().__init__(trunk)
        self.draft = draft
        self._num_logits, self._num_known = _num_logits(trunk), _num_logits(draft)

    def _own_caches(self, trunk: Caches) -> Caches:
        return new_caches(self.draft)

    def _feed(self, tokens: mx.array, trunk: Caches, own: Caches, embeddings: mx.array | None) -> mx.array:
        self.draft(self._known(tokens), cache=list(map(viewed, own)))  # it sees no images
        return forward(self.trunk, tokens, trunk, embeddings)

    def _step(self, tokens: mx.array, hidden: mx.array | None, fed: Caches) -> tuple[mx.array, mx.array | None]:
        logits = self.draft(self._known(tokens), cache=list(map(viewed, fed)))[..., : self._num_logits]
        missing = [(0, 0), (0, 0), (0, self._num_logits - logits.shape[-1])]
        return mx.pad(logits, missing, constant_values=mx.array(-mx.inf, logits.dtype)), None

    def _known(self, tokens: mx.array) -> mx.array:
        """The tokens, as far as the draft model has them: two models of one vocabulary may differ by padding."""
        return mx.minimum(tokens, self._num_known - 1)


def forward(network: Any, tokens: mx.array, caches: Caches, embeddings: mx.array | None = None) -> mx.array:
    """Runs a network on tokens, or on embeddings in their place."""
    fed = {} if embeddings is None else {"input_embeddings": embeddings}
    return cast(mx.array, network(tokens, cache=caches, **fed))


def _num_logits(network: Any) -> int:
    logits = network(mx.zeros((1, 1), dtype=mx.uint32), cache=new_caches(network))
    return int(logits.shape[-1])


def family_of(network: Any) -> str:
    """The module of mlx-lm or mlx-vlm with a network's code; the trunk's, if it has a drafter."""
    trunk = network.trunk if isinstance(network, DraftingNetwork) else network
    if type(trunk).__module__.startswith("adapters."):
        trunk = trunk.language_model  # a network of a library, used as another
    return type(trunk).__module__.removesuffix(".language").rpartition(".")[2]
