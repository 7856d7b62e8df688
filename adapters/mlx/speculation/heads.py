"""Multi-token-prediction heads: one more layer of the model, trained to predict the token after the next one.

The head at index i joins the hidden state of token i - 1, behind the trunk's final norm, with the embedding of token i,
feeds that to a layer of the family's own kind, and shares the trunk's output matrix:

    index of the head    0       1              2              n            (proposing)   n + 1
    hidden state of      none    token 0        token 1        token n - 1                its own at n
    embedding of         none    token 1        token 2        waiting token              first draft token
    predicts                     token 2        token 3        first draft token          second draft token

So the head's state covers as many tokens as the trunk's, at every position. The hidden state of the last token belongs
to it (`hidden_cache`). Where it is kept for every token, it is 4 % of the state of GLM-4.5-Air and 20 % of that of
DeepSeek V3; a hybrid model keeps one.
"""

from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, hidden_cache, keep_hidden, last_hidden, new_caches
from adapters.mlx.runtime.arrays import computed_after
from adapters.mlx.speculation.drafting import DraftingNetwork, forward, nn
from domain.speculation.drafter import Drafter


def text_model(network: Any) -> Any:
    """The part of a network whose `model` gives hidden states behind the final norm."""
    return network.language_model if "language_model" in network else network


def trunk_of(network: Any) -> Any:
    """The network that the logits come from, without a drafter."""
    return network.trunk if isinstance(network, DraftingNetwork) else network


def logits_of(network: Any, hidden: mx.array) -> mx.array:
    """Applies a network's output matrix to hidden states behind the final norm, and its cap on logits."""
    text = text_model(network)
    logits = cast(mx.array, text.lm_head(hidden) if "lm_head" in text else text.model.embed_tokens.as_linear(hidden))
    cap = cast(float | None, getattr(text, "final_logit_softcapping", None))
    return mx.tanh(logits / cap) * cap if cap else logits


class PredictionHead(nn.Module):  # type: ignore[misc]
    """A head's weights. `is_hidden_first`: the order in which the hidden state and the embedding are joined."""

    def __init__(self, layer: Any, hidden_size: int, eps: float, *, is_hidden_first: bool) -> None:
        """`layer`: a network of the family with one layer; its embedding and its output matrix are removed."""
        nn.Module.__init__(self)
        text = text_model(layer)
        text.model.embed_tokens = nn.Identity()  # it takes hidden states for tokens
        text.model.ssm_idx = None  # the layer that Qwen's networks ask for a recurrent mask: there is none
        text.pop("lm_head", None)
        self.layer = layer
        self.hidden_norm, self.embedding_norm = nn.RMSNorm(hidden_size, eps), nn.RMSNorm(hidden_size, eps)
        self.projection = nn.Linear(2 * hidden_size, hidden_size, bias=False)
        self._is_hidden_first = is_hidden_first

    def __call__(self, embeddings: mx.array, hidden: mx.array, cache: Caches) -> tuple[mx.array, mx.array]:
        """Returns the layer's input and its output behind the final norm, [rows, length, hidden] each."""
        parts = [self.embedding_norm(embeddings), self.hidden_norm(hidden)]
        joined = self.projection(mx.concatenate(parts[::-1] if self._is_hidden_first else parts, axis=-1))
        return joined, text_model(self.layer).model(joined, cache=cache)


class HeadNetwork(DraftingNetwork):
    """A trunk with its multi-token-prediction head."""

    drafter = Drafter.HEAD

    def __init__(self, trunk: Any, head: PredictionHead) -> None:
        super().__init__(trunk)
        self.head = head

    def _own_caches(self, trunk: Caches) -> Caches:
        return [*new_caches(self.head.layer), hidden_cache(trunk)]

    def _feed(self, tokens: mx.array, trunk: Caches, own: Caches, embeddings: mx.array | None) -> mx.array:
        *fed, last = own
        hidden = forward(text_model(self.trunk).model, tokens, trunk, embeddings)
        embeddings, before = self._embedded(tokens) if embeddings is None else embeddings, last_hidden(last)
        if before is None:  # zeros for the first token give a key and a value of zero
            before = mx.zeros_like(hidden[:, :1])
            embeddings = mx.concatenate([mx.zeros_like(embeddings[:, :1]), embeddings[:, 1:]], axis=1)
        joined, _ = self.head(embeddings, mx.concatenate([before, hidden[:, :-1]], axis=1), fed)
        # What reads the buffer comes before what writes into it: otherwise the update would copy all of it.
        keep_hidden(last, computed_after(hidden, [joined]))
        return logits_of(self.trunk, hidden)

    def _begin(self, own: Caches) -> tuple[Caches, mx.array | None]:
        return own[:-1], last_hidden(own[-1])

    def _step(self, tokens: mx.array, hidden: mx.array | None, fed: Caches) -> tuple[mx.array, mx.array | None]:
        assert hidden is not None
        _, hidden = self.head(self._embedded(tokens), hidden, fed)
        return logits_of(self.trunk, hidden), hidden

    def _embedded(self, tokens: mx.array) -> mx.array:
        return cast(mx.array, text_model(self.trunk).model.embed_tokens(tokens))
