"""A check at load that a prompt's state does not depend on how the prompt was divided, beyond the family's thresholds.

What a prefix cache keeps was computed in chunks, and is gone on with from a restored state. Some families' code gets
that wrong, and only beyond a threshold that no short prompt reaches: a selection that keeps the length of its first
pass, a pooling that forgets what it has not pooled yet. What they compute is not to be kept.

    one pass     [                      all tokens                      ]
    in pieces    [       1       ][       2       ][     3     ][4][5][6]
    restored      captured of 1 and 2              [     3     ]
"""

import logging
from collections.abc import Generator
from concurrent.futures import Future
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.caches.leaves import Caches, layout_of, live_arrays, new_caches
from adapters.mlx.loading.probe import WRONG_WITH_DRAFTS, deviations, limit_of, toy_tokens
from adapters.mlx.loading.thresholds import small_thresholds
from adapters.mlx.memory import MeasuredFile
from adapters.mlx.runtime.arrays import evaluate, token_array
from adapters.mlx.speculation.drafting import family_of
from adapters.mlx.state.capture import HeldRow, copy_blocks, copy_snapshot
from adapters.mlx.state.restore import restore_caches
from domain.prefix.record import GroupPayloads

_logger = logging.getLogger("cairn.mlx")


def find_flaw(
    network: Any, vocab_size: int | None, file: MeasuredFile | None, content: str
) -> Generator[Future[Any] | None, None, str]:
    """Returns why a network's state must not be reused, remembered or found out; empty if it may be. `content`:
    identity of the model's content and of what computes it; empty for a model that cannot be recognised."""
    key = f"pieces of {content}, {_exact_versions()}"
    if file is not None and content and isinstance(known := (yield from file.recall(key)), str):
        return known
    found = yield from flaw_of(network, vocab_size)
    if file is not None and content:
        file.remember(key, found)
    return found


def flaw_of(network: Any, vocab_size: int | None) -> Generator[None, None, str]:
    """The same, found out a pass at a time: some tokens computed whole, in pieces, and from a restored state."""
    with small_thresholds(network) as num_tokens:
        tokens = token_array(toy_tokens(num_tokens, vocab_size))[None]
        first, second, third = num_tokens // 3, 2 * num_tokens // 3, num_tokens - 3
        try:
            whole = _computed(network, tokens, new_caches(network))[first:]
            evaluate([whole])
        except Exception as error:  # a family's kernel may not take a small threshold, which proves nothing
            _logger.info("%s is not checked beyond its thresholds: %s", family_of(network), error)
            return ""
        yield
        try:
            caches = new_caches(network)
            layout, blocks, pieces = layout_of(caches), list[GroupPayloads](), list[mx.array]()
            snapshot: GroupPayloads = {}
            for start, end in pairwise((0, first, second, *range(third, num_tokens + 1))):
                pieces.append(_computed(network, tokens[:, start:end], caches))
                evaluate([pieces[-1], *live_arrays(caches)])
                if end <= second:
                    held = HeldRow(caches, 0, end)
                    blocks += copy_blocks(layout, held, [(start, end)])
                    snapshot = copy_snapshot(layout, held, end)
                yield
            restored = new_caches(network)
            specs = {int(at): kept.specs for at, kept in (*blocks[0].items(), *snapshot.items())}
            restore_caches(restored, layout, specs, second, blocks, snapshot)
            again = _computed(network, tokens[:, second:third], restored)
            evaluate([again])
        except Exception as error:
            return f"computing a prompt in pieces raises {type(error).__name__}: {str(error)[:200]}"
        divided = "" if family_of(network) in WRONG_WITH_DRAFTS else _difference(mx.concatenate(pieces[1:]), whole)
        lost = _difference(again, pieces[2])
    if divided:
        return f"a prompt computed in pieces differs from one computed in a single pass by {divided}"
    return f"what follows a restored state differs from what was computed by {lost}" if lost else ""


def _computed(network: Any, tokens: mx.array, caches: Caches) -> mx.array:
    """The logits of the tokens of one sequence, [length, vocab]; lazy."""
    return cast(mx.array, network(tokens, cache=caches)[0])


def _difference(found: mx.array, expected: mx.array) -> str:
    """Empty if the rows agree: all of them, but in half precision half of them, since there a single token may choose
    another expert or key of nearly the same weight."""
    rows = mx.sort(deviations(found, expected))
    decisive = cast(float, rows[-1 if found.dtype == mx.float32 else rows.size // 2].item())
    return "" if decisive <= limit_of(found.dtype) else f"{decisive:.2g} standard deviations of the logits"


def _exact_versions() -> str:
    """The libraries with a family's code, to the last digit: a small release may mend a family or break it."""
    found: list[str] = []
    for name in ("mlx", "mlx-lm", "mlx-vlm"):
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return " ".join(found)
