"""From an encoder's network in memory to a LoadedModel: tried with a few toy tokens, and described.

It has no state, so that nothing of `probe` applies, and its memory is that of the configuration's formula: each pass
takes whole texts, and the planner and the memory check count the longest.
"""

from collections.abc import Generator
from typing import Any

import numpy as np

from adapters.mlx.caches.leaves import layout_of, new_caches
from adapters.mlx.loading.assembly import arithmetic_of, main_dtype, runtime_of
from adapters.mlx.loading.network import ModelFacts
from adapters.mlx.memory import shape_of_network
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.arrays import parameters
from domain.errors import ModelLoadFailed
from domain.ids import SequenceId
from domain.models.capability import ModelUse
from domain.models.model_card import ContextLength, DecodeMode, ModelDescription, ModelSource

_TRIED_ID = SequenceId(-1)
_TRIED = ([5], list(range(5, 69)))
"""A short text beside a long one, so that padding is tried too."""


def encoder_context(use: ModelUse) -> ContextLength | None:
    """The context of an encoder, which its files bound; None for another model."""
    if not use.is_encoder or use.max_tokens is None:
        return None
    return ContextLength(use.max_tokens, "config.json or sentence_bert_config.json", use.max_tokens)


def assemble_encoder(
    network: Any, source: ModelSource, facts: ModelFacts, blas: str = ""
) -> Generator[None, None, MlxModel]:
    """Tries and describes an evaluated encoder on this thread. Raises ModelLoadFailed. `blas`: as in `assemble`."""
    layout, weights = layout_of(new_caches(network)), parameters(network)
    memory, context = shape_of_network(network, layout, facts.config), encoder_context(source.use)
    assert context is not None, "only encoders come here"
    description = ModelDescription(
        id=source.id,
        model_type=str(facts.config["model_type"]),
        vocab_size=network.config.vocab_size,
        context=context,
        eos_token_ids=frozenset(),
        dtype=main_dtype(weights),
        weight_bytes=memory.weight_bytes,
        layout=layout,
        decode_mode=DecodeMode.BATCHED,
        weights_digest=facts.digest,
        runtime=runtime_of("mlx-vlm", "mlx"),
        arithmetic=arithmetic_of(blas),
        memory=memory,
    )
    model = MlxModel(network, description, 0, {})
    yield
    model.open(_TRIED_ID)
    rows = [[id % description.vocab_size for id in row[: context.length]] for row in _TRIED]
    values = model.pool(_TRIED_ID, rows, source.use.pooling)
    model.close([_TRIED_ID])
    if not all(np.isfinite(np.frombuffer(value, "<f4")).all() for value in values):
        raise ModelLoadFailed(f"the model computes infinities or NaN in {description.dtype}; try another --dtype")
    return model
