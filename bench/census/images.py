"""Restored against recomputed state behind images, for every family that sees, built tiny.

A prompt with two images is computed cold, on a grid; then it is resumed from records at a grid line, in the first
image, between the images and behind both. Compared are all bits of the state at the end of the prompt, the log
probabilities of six greedy tokens, and the logits of the whole prompt with those of mlx-vlm in one pass.
"""

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import mlx.core as mx

from domain.ids import SequenceId
from tests.support.mlx.vision.seers import Answer, Seer, answer, logits_of, make_seer, open_seer, prefill
from tests.support.mlx.vision.tiny_seers import CONFIGS, logits_by_mlx_vlm
from tests.support.stores.state_replay import BLOCK, Captured, StateBytes, whole_state

TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class SeenRow:
    """One family. `peer`: the largest difference of a logit to mlx-vlm. `on_grid`, `elsewhere`: True if every bit of
    the state is equal; else the largest difference of a log probability. None: no chunk ends there."""

    name: str
    peer: float
    on_grid: bool | float
    elsewhere: dict[str, bool | float | None]

    @property
    def problem(self) -> str:
        if self.peer > TOLERANCE:
            return f"differs from mlx-vlm by {self.peer:.0e}"
        if self.on_grid is not True:
            return f"not exact at a grid position: {self.on_grid:.0e}"
        worst = max(float(one) for one in self.elsewhere.values() if one not in (True, None)) if self._inexact else 0.0
        return "" if worst <= TOLERANCE else f"differs by {worst:.0e} off the grid"

    @property
    def _inexact(self) -> bool:
        return any(one not in (True, None) for one in self.elsewhere.values())

    def cells(self) -> list[str]:
        return [self.name, f"{self.peer:.0e}", *(_cell(one) for one in (self.on_grid, *self.elsewhere.values()))]


HEADINGS = ("family", "mlx-vlm", "grid", "in an image", "between images", "behind both")


def examine_images(name: str, folder: Path) -> SeenRow:
    seer = make_seer(name, folder)
    expected = logits_by_mlx_vlm(name, seer.peer, seer.tokens, seer.seen)
    peer = float(mx.max(mx.abs(logits_of(seer, []) - expected)).item())
    first, second = seer.media
    cold = _ending(seer, open_seer(seer))
    inside = None if seer.vision.scheme.is_whole else _resumed(seer, first.start + 3, cold)
    elsewhere = {"in": inside, "between": _resumed(seer, first.end + 1, cold)}
    elsewhere["behind"] = _resumed(seer, second.end + 1, cold)
    return SeenRow(name, peer, _resumed(seer, BLOCK, cold) is True, elsewhere)


def census_images(directory: Path) -> list[SeenRow]:
    rows: list[SeenRow] = []
    for name in sorted(CONFIGS):
        folder = directory / name
        folder.mkdir()
        rows.append(examine_images(name, folder))
        mx.clear_cache()
        print(*rows[-1].cells(), rows[-1].problem and f"!! {rows[-1].problem}", sep="  ", flush=True)
    return rows


def images_as_markdown(rows: list[SeenRow]) -> list[str]:
    return [
        "## Behind images",
        "",
        "Prompts with two images, in float32. `mlx-vlm`: the largest difference of a logit to the own network of "
        f"mlx-vlm {version('mlx-vlm')}; the others as above. An image that attends to itself is computed at once, so "
        "no state ends inside one.",
        "",
        f"| {' | '.join(HEADINGS)} |",
        f"|{'---|' * len(HEADINGS)}",
        *(f"| {' | '.join(row.cells())} |" for row in rows),
        "",
    ]


def _resumed(seer: Seer, position: int, cold: tuple[StateBytes, Answer]) -> bool | float:
    id, captured = open_seer(seer), Captured(position)
    prefill(seer, id, position)
    starts = range(0, position - BLOCK + 1, BLOCK)
    captured.blocks = list(seer.model.capture_blocks(id, [(start, start + BLOCK) for start in starts]))
    captured.snapshot = seer.model.capture_snapshot(id, len(captured.blocks) * BLOCK)
    seer.model.close([id])
    state, tokens = _ending(seer, open_seer(seer, captured.on_host()))
    pairs = zip(tokens, cold[1], strict=True)
    difference = max(abs(one - other) if token == same else 1.0 for (token, one), (same, other) in pairs)
    return True if state == cold[0] and difference == 0 else difference


def _ending(seer: Seer, id: SequenceId) -> tuple[StateBytes, Answer]:
    prefill(seer, id, len(seer.tokens) - 2)
    return whole_state(seer.model, id), answer(seer, id)


def _cell(value: bool | float | None) -> str:
    if value is None:
        return "-"
    return "=" if value is True else f"{value:.0e}"
