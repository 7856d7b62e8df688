"""The load's probe of drafts: a network whose passes of several tokens go wrong amid decoding is found out."""

from collections.abc import Callable
from typing import Any

import mlx.core as mx
import pytest

from adapters.mlx.loading.probe import Probe, probe
from domain.models.model_card import DecodeMode
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import build


class Around:
    """A network whose logits pass through `spoil` together with the tokens and the number of tokens before them."""

    def __init__(self, network: Any, spoil: Callable[[mx.array, mx.array, int], mx.array]) -> None:
        self._network, self._spoil = network, spoil

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def __call__(self, tokens: mx.array, cache: Any) -> mx.array:
        before = 0 if cache[0].keys is None else 1
        return self._spoil(self._network(tokens, cache=cache), tokens, before)


class Counting:
    """Counts the tokens outside the caches, where no rejection is undone, and spoils logits behind one."""

    def __init__(self) -> None:
        self.has_drafted = False

    def __call__(self, logits: mx.array, tokens: mx.array, before: int) -> mx.array:
        spoiled = -logits if self.has_drafted and tokens.shape[1] == 1 else logits
        self.has_drafted |= before > 0 and tokens.shape[1] > 1
        return spoiled


def wide(logits: mx.array, tokens: mx.array, before: int) -> mx.array:
    return -logits if before and tokens.shape[1] > 1 else logits


def wide_in_batches(logits: mx.array, tokens: mx.array, before: int) -> mx.array:
    return -logits if before and tokens.shape[1] > 1 and tokens.shape[0] > 1 else logits


def raising(logits: mx.array, tokens: mx.array, before: int) -> mx.array:
    if before and tokens.shape[1] > 1:
        raise ValueError("one token at a time")
    return logits


def result(network: Any) -> Probe:
    return finish_load(probe(network, 256))


@pytest.mark.parametrize(
    ("spoil", "note"),
    [
        (wide, "differs from decoding token by token"),
        (wide_in_batches, "differs from decoding token by token"),
        (Counting(), "differs from decoding token by token"),
        (raising, "raises ValueError: one token at a time"),
    ],
    ids=["wrong", "wrong in a batch", "wrong behind a rejection", "raising"],
)
def test_a_network_that_cannot_verify_is_served_without_drafts(spoil: Any, note: str) -> None:
    found = result(Around(build("llama"), spoil))
    assert note in found.draft_note
    assert found.decode_mode is DecodeMode.BATCHED, "it decodes in batches all the same"


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "falcon_h1", "mamba2", "gemma2", "llama4"])
def test_what_families_leave_behind_is_put_back(family: str) -> None:
    assert result(build(family)).draft_note == ""
