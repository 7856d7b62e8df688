"""The network of a loaded model, as prefill and decoding call it."""

from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches
from adapters.mlx.speculation.drafting import Propose


class LoadedNetwork:
    """An mlx-lm network, evaluated on the compute thread. `module`: the network itself; None once it is released.
    `propose`: its own drafter; None for none."""

    def __init__(self, module: Any) -> None:
        self.module: Any = module
        self.propose: Propose | None = getattr(module, "propose", None)

    def forward(self, tokens: mx.array, caches: Caches, embeddings: mx.array | None = None) -> mx.array:
        """Maps tokens uint32 [rows, length] and caches to logits [rows, length, vocab]; advances the caches."""
        seen = {} if embeddings is None else {"input_embeddings": embeddings}
        return cast(mx.array, self.module(tokens, cache=caches, **seen))

    def release(self) -> None:
        """Frees the weights."""
        self.module = self.propose = None
