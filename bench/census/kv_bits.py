"""Keys and values in fewer bits: which models keep some so, and how far their answers are from unquantised ones."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import new_caches, quantised_layers
from adapters.mlx.loading.network import keep_quantised
from domain.memory.kv_bits import KVBits
from tests.support.mlx.tiny_models import build, config_of

KV_BITS = {"KV of 8 bits": KVBits(8, 8), "KV of 4 bits": KVBits(4, 4)}


def keeps_in(network: Any, config: Mapping[str, Any], bits: KVBits) -> bool:
    """Lets a network keep its full KV in `bits`; returns whether it has any."""
    keep_quantised(network, config, bits)
    kept = quantised_layers(network)
    return kept is not None and bool(kept.sides)


def distance(name: str, bits: KVBits, prompt: Sequence[int]) -> str:
    """The distance of a tiny family to itself in float32, in words."""
    network, tokens = build(name), mx.array([prompt])
    plain = logprobs_of(network, tokens)
    keeps_in(network, config_of(name), bits)
    divergence, agreement = compared(plain, logprobs_of(network, tokens))
    return f"divergence {divergence:.0e}, same token {agreement:.0%}"


def logprobs_of(network: Any, tokens: mx.array) -> mx.array:
    """The log probabilities of every next token, [tokens, vocab]."""
    logits = network(tokens, cache=new_caches(network))[0].astype(mx.float32)
    found = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    mx.eval(found)
    return found


def compared(plain: mx.array, other: mx.array) -> tuple[float, float]:
    """The mean Kullback-Leibler divergence of `other` from `plain`, in nats, and the share of equal first choices."""
    divergence = mx.mean(mx.sum(mx.exp(plain) * (plain - other), axis=-1))
    agreement = mx.mean((mx.argmax(plain, axis=-1) == mx.argmax(other, axis=-1)).astype(mx.float32))
    return cast(float, divergence.item()), cast(float, agreement.item())
