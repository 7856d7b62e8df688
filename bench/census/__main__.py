"""Restored against recomputed state, for every model family of the installed mlx-lm that can be built tiny, and every
one whose text mlx-vlm computes.

    python -m bench.census [NAME ...] [--write FILE]

Each family runs in float32, in bfloat16 (mixtures of experts in 4 bits: a CPU has no bfloat16 kernel for them), and
with keys and values in 8 and in 4 bits, where the distance to float32 is measured too (`census_kv`). A
prompt of 151 tokens is computed cold, in chunks of 64; then it is resumed from state captured at grid positions, at
the end of a block between two grid lines, and inside a block, each time from the hot tier and from a store that was
closed and opened again. Compared are all bits of the state at the end of the prompt, the log probabilities of the 20
likeliest next tokens, and 16 greedy tokens. In float32 sequences are also decoded with drafts (`census_drafts`). Fails
when a grid position is not exact, another one out of tolerance, or a token other than without drafts. Families that
see are examined behind images too (`census_images`).
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from adapters.system.blas import load_blas
from tests.support.engines.finish_load import finish_load

load_blas()
os.environ.setdefault("MLX_DISABLE_COMPILE", "1")  # compiling fused kernels takes longer than all these models run

import mlx.core as mx  # noqa: E402 - a BLAS only counts when it is there before MLX
import mlx.nn as nn  # noqa: E402

from adapters.fake.environment import FakeClock  # noqa: E402
from adapters.lmdb.block_store import LmdbBlockStore, LmdbOptions  # noqa: E402
from adapters.mlx.loading.assembly import assemble  # noqa: E402
from adapters.mlx.loading.network import ModelFacts  # noqa: E402
from adapters.mlx.model import MlxModel  # noqa: E402
from adapters.mlx.runtime.arrays import trial  # noqa: E402
from adapters.mlx.runtime.device import describe_device  # noqa: E402
from adapters.zstd.codec import ZstdStateCodec  # noqa: E402
from application.ports.block_store import PutOutcome  # noqa: E402
from application.services.prefix.hot_tier import HotTier  # noqa: E402
from bench.census.drafts import NEAR_TIE, Drafted, compare_drafts  # noqa: E402
from bench.census.images import SeenRow, census_images, images_as_markdown  # noqa: E402
from bench.census.kv_bits import KV_BITS, distance, keeps_in  # noqa: E402
from domain.errors import ModelLoadFailed  # noqa: E402
from domain.id_row import IdRow  # noqa: E402
from domain.ids import ModelId  # noqa: E402
from domain.models.model_card import DecodeMode  # noqa: E402
from domain.models.state_layout import LayerState, StateKind  # noqa: E402
from domain.prefix.hashing import BlockChain, snapshot_key  # noqa: E402
from domain.prefix.record import BlockKey, Namespace, NamespaceInfo, Record, RecordKey  # noqa: E402
from tests.support.mlx.tiny_models import build, config_of, modules, names  # noqa: E402
from tests.support.stores.state_replay import (  # noqa: E402
    BLOCK,
    Captured,
    StateBytes,
    capture,
    open_at,
    prompt_of,
    start_greedy,
    whole_state,
)
from tests.support.telemetry.recording import RecordingEvents  # noqa: E402

GRID = 64
PROMPT = prompt_of(151)
ON_GRID = (64, 128)
BLOCK_END = 96
INSIDE_BLOCK = 110
NUM_GREEDY = 16

TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15, "4-bit": 0.15, "KV of 8 bits": 0.05, "KV of 4 bits": 0.5}
"""Off the grid: largest accepted difference of a log probability."""

LOOSER = {"plamo3": (0.02, "mlx-lm masks one token more than its cache keeps, so chunking changes the result")}
"""Families that depend on chunking by themselves, in mlx-lm too."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a run of the prompt."""

    state: StateBytes
    logprobs: dict[int, float]
    tokens: list[int]


@dataclass(frozen=True, slots=True)
class Resumed:
    """A resumed run against the cold one. `num_equal`: greedy tokens before the first that differs."""

    is_exact: bool
    difference: float
    num_equal: int

    def __str__(self) -> str:
        if self.is_exact:
            return "="
        return f"{self.difference:.0e}" + ("" if self.num_equal == NUM_GREEDY else f" ({self.num_equal})")


@dataclass(frozen=True, slots=True)
class Row:
    """One family in one precision. `drafts`: None where none is verified. `note`: why decode is single or without
    drafts, or why it did not run."""

    name: str
    precision: str
    caches: str = ""
    on_grid: Resumed | None = None
    block_end: Resumed | None = None
    inside: Resumed | None = None
    drafts: Drafted | None = None
    note: str = ""

    @property
    def problem(self) -> str:
        """Empty when the promise holds, or when a CPU cannot run the family in this precision."""
        if self.on_grid is None or self.block_end is None or self.inside is None:
            return self.note if self.precision == "float32" else ""
        if not (self.on_grid.is_exact and self.on_grid.num_equal == NUM_GREEDY):
            return f"not exact at a grid position: {self.on_grid}"
        if self.drafts is not None and self.drafts.problem:
            return f"drafts: {self.drafts.problem}"
        limit = max(TOLERANCE[self.precision], LOOSER.get(self.name, (0.0, ""))[0])
        worst = max(self.block_end.difference, self.inside.difference)
        return "" if worst <= limit else f"differs by {worst:.1e} off the grid"


def load(name: str, precision: str) -> MlxModel | None:
    """None where no state would be kept in the bits of `precision`."""
    kv_bits = KV_BITS.get(precision)
    network = build(name, mx.float32 if precision == "float32" or kv_bits else mx.bfloat16)
    if kv_bits is not None and not keeps_in(network, config_of(name), kv_bits):
        return None
    if precision == "4-bit":
        nn.quantize(network, 32, 4, class_predicate=lambda _path, module: _can_quantise(module))
        mx.eval(network.parameters())
    with trial():  # as an engine loads: what a CPU has no kernel for is the model's failure
        return finish_load(assemble(network, ModelId(name), ModelFacts(config_of(name))))


def _can_quantise(module: nn.Module) -> bool:
    return hasattr(module, "to_quantized") and module.weight.shape[-1] % 32 == 0


def end_of(model: MlxModel, captured: Captured | None = None) -> Ending:
    """Run the prompt to its end, cold or from captured state, and go on greedily."""
    id = open_at(model, PROMPT, captured, GRID)
    state = whole_state(model, id) if model.description.layout.is_reusable else {}
    start_greedy(model, id, PROMPT, num_logprobs=20)
    tokens: list[int] = []
    logprobs: dict[int, float] = {}
    for _ in range(NUM_GREEDY):
        (result,) = model.decode([id])
        if result.error is not None or not result.logprobs:
            raise RuntimeError(f"decode failed: {result.error}")
        logprobs = logprobs or dict(result.logprobs[0].top)
        tokens.append(result.token_ids[0])
    model.close([id])
    return Ending(state, logprobs, tokens)


def compare(cold: Ending, resumed: Ending) -> Resumed:
    common = cold.logprobs.keys() & resumed.logprobs.keys()
    difference = max(abs(cold.logprobs[token] - resumed.logprobs[token]) for token in common)
    pairs = zip(cold.tokens, resumed.tokens, strict=True)
    num_equal = next((index for index, (one, other) in enumerate(pairs) if one != other), NUM_GREEDY)
    return Resumed(cold.state == resumed.state and difference == 0, difference, num_equal)


def worst_of(results: list[Resumed]) -> Resumed:
    return Resumed(
        all(result.is_exact for result in results),
        max(result.difference for result in results),
        min(result.num_equal for result in results),
    )


class Tiers:
    """The tiers of captured state: a hot tier, and a store on disk that is reopened before anything is read back."""

    def __init__(self, folder: Path, serial: int) -> None:
        self._folder = folder
        self._namespace = Namespace(serial.to_bytes(32, "big"))
        self._hot = HotTier(2**30)

    def through(self, captured: Captured) -> Iterator[Captured]:
        """The captured state as the hot tier and as the reopened store give it back."""
        records = self._records(captured)
        keys: list[RecordKey] = [record.key for record in records]
        if self._hot.put(records) != len(records):
            raise RuntimeError("the hot tier refused a record")
        yield self._captured(captured, self._hot.acquire(keys, [None] * len(keys)))
        self._hot.release(keys)
        store = self._open()
        store.open_namespace(NamespaceInfo(self._namespace, "census", "{}"))
        outcome = store.put(records)
        store.close()
        if outcome is not PutOutcome.STORED:
            raise RuntimeError(f"the store answered {outcome}")
        store = self._open()
        found = store.get(keys)
        store.close()
        yield self._captured(captured, list(found))

    def _open(self) -> LmdbBlockStore:
        options = LmdbOptions(quota_bytes=256 * 2**20)
        return LmdbBlockStore(self._folder, options, ZstdStateCodec(), RecordingEvents(), FakeClock())

    def _records(self, captured: Captured) -> list[Record]:
        chain = BlockChain(self._namespace, BLOCK)
        records: list[Record] = []
        for index, groups in enumerate(captured.blocks):
            tokens = PROMPT[index * BLOCK : (index + 1) * BLOCK]
            parent = chain.parent(index)
            (digest,) = chain.feed(tokens)
            key = BlockKey(self._namespace, digest)
            records.append(Record(key, parent, (index + 1) * BLOCK, IdRow(tokens), groups))
        parent, partial = chain.parent(len(captured.blocks)), PROMPT[len(captured.blocks) * BLOCK : captured.position]
        key_of_snapshot = snapshot_key(self._namespace, parent, partial)
        return [*records, Record(key_of_snapshot, parent, captured.position, IdRow(partial), captured.snapshot)]

    @staticmethod
    def _captured(captured: Captured, records: list[Record | None]) -> Captured:
        groups = [record.groups for record in records if record is not None]
        if len(groups) != len(records):
            raise RuntimeError("a tier lost a record")
        return Captured(captured.position, groups[:-1], groups[-1])


def examine(name: str, precision: str, folder: Path, serial: int) -> Row | None:
    """None where `load` returns none."""
    try:
        model = load(name, precision)
    except ModelLoadFailed as error:
        return Row(name, precision, note=str(error).splitlines()[0])
    if model is None:
        return None
    layout = model.description.layout
    caches = ", ".join(_run_lengths([_kind(layer) for layer in layout.layers]))
    is_single = model.description.decode_mode is DecodeMode.SINGLE
    note = f"decodes one sequence at a time: {model.description.decode_note}" if is_single else ""
    note = "; ".join(filter(None, [note, model.description.drafter_note]))
    if not layout.is_reusable:
        return Row(name, precision, caches, note=f"no prefix reuse: {', '.join(layout.unsupported)}")
    cold = end_of(model)
    tiers = Tiers(folder, serial)

    def resume(position: int) -> Resumed:
        captured = capture(model, PROMPT, position, GRID)
        return worst_of([compare(cold, end_of(model, one)) for one in tiers.through(captured)])

    on_grid = worst_of([resume(position) for position in ON_GRID])
    drafts = None
    if precision in KV_BITS:
        note = "; ".join(filter(None, [distance(name, KV_BITS[precision], PROMPT), note]))
    if precision == "float32" and not model.description.drafter_note:
        drafts = compare_drafts(model)
    return Row(name, precision, caches, on_grid, resume(BLOCK_END), resume(INSIDE_BLOCK), drafts, note)


def _kind(layer: LayerState) -> str:
    if layer.kind is StateKind.COMPOSITE:
        return f"({' + '.join(_kind(child) for child in layer.children)})"
    if layer.kind is StateKind.WINDOWED:
        return f"window {layer.window}"
    return layer.kind.value


def _run_lengths(kinds: list[str]) -> Iterator[str]:
    for kind, run in groupby(kinds):
        count = len(list(run))
        yield f"{count} {kind}" if count > 1 else kind


def census(wanted: list[str]) -> list[Row]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory:
        for name in wanted:
            for precision in ("float32", "bfloat16", *KV_BITS):
                folder = Path(directory) / f"{len(rows)}"
                row = examine(name, precision, folder, len(rows))
                if row is not None and row.on_grid is None and precision == "bfloat16":
                    row = examine(name, "4-bit", folder / "4-bit", len(rows))
                if row is None:
                    continue
                rows.append(row)
                mx.clear_cache()
                print(*_cells(row), row.problem and f"!! {row.problem}", sep="  ", flush=True)
    return rows


def _cells(row: Row) -> list[str]:
    found = (row.on_grid, row.block_end, row.inside, row.drafts)
    results = [str(one) if one is not None else "-" for one in found]
    return [row.name, row.precision, row.caches or "-", *results, row.note]


def as_markdown(rows: list[Row], seen: list[SeenRow]) -> str:
    exact = {precision: _count_exact(rows, precision) for precision in TOLERANCE}
    looser = [f"* `{name}`: {limit:g}, because {why}." for name, (limit, why) in LOOSER.items()]
    drafted = [row.drafts for row in rows if row.drafts is not None]
    num_right, num_ties = sum(not one.problem for one in drafted), sum(one.num_ties for one in drafted)
    missing = sorted(set(modules()) - {row.name.split("+")[0] for row in rows})
    return "\n".join([
        "# Census: restored against recomputed state",
        "",
        "Written by `make census`; see `bench/census/` for what is compared. Model families of mlx-lm "
        f"{version('mlx-lm')}, and those whose text is computed by mlx-vlm {version('mlx-vlm')}, on MLX "
        f"{version('mlx')}, {describe_device()}, built tiny with random weights.",
        "",
        *(f"* {precision}: {found} exact at grid positions." for precision, found in exact.items()),
        f"* float32 with drafts: {num_right} of {len(drafted)} give every token of plain decoding, alone and in "
        f"batches, greedy and drawn; {num_ties} tokens at near-ties (log probabilities equal to {NEAR_TIE:g}) are not "
        "counted.",
        "",
        "`=`: every bit of the state and of the log probabilities, and all 16 greedy tokens. Otherwise the largest "
        "difference of a log probability, and in brackets how many greedy tokens agree if not all. Each figure is the "
        f"worse of hot tier and reopened store. Grid {GRID}, positions {ON_GRID[0]} and {ON_GRID[1]}; block end "
        f"{BLOCK_END}; inside a block {INSIDE_BLOCK}. Drafts: the largest difference of a log probability.",
        "",
        "KV of 8 and 4 bits: float32 with the keys and values of full attention in so many bits, groups of 64. Its "
        "distance to float32, over the prompt: the mean Kullback-Leibler divergence of the next token, and how often "
        "the likeliest token is the same. Random weights give flat distributions with many near ties.",
        "",
        "Accepted off the grid: " + ", ".join(f"{limit:g} in {name}" for name, limit in TOLERANCE.items()) + ".",
        *looser,
        "",
        "| family | precision | caches | grid | block end | inside a block | drafts | note |",
        "|---|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(_cells(row))} |" for row in rows),
        "",
        f"Modules without a tiny configuration: {', '.join(missing)}.",
        "",
        *images_as_markdown(seen),
    ])  # fmt: skip


def _count_exact(rows: list[Row], precision: str) -> str:
    found = [row for row in rows if row.precision == precision and row.on_grid is not None]
    return f"{sum(row.on_grid is not None and row.on_grid.is_exact for row in found)} of {len(found)}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="families (default: all)")
    parser.add_argument("--write", type=Path, help="where the table goes (all families: docs/census.md)")
    given = parser.parse_args()
    rows, seen = census(given.names or names()), list[SeenRow]()
    if not given.names:
        with tempfile.TemporaryDirectory() as directory:
            seen = census_images(Path(directory))
    target = given.write or (None if given.names else Path("docs/census.md"))
    if target is not None:
        target.write_text(as_markdown(rows, seen), encoding="utf-8")
    problems = [row for row in (*rows, *seen) if row.problem]
    print(f"{len(rows) + len(seen)} rows, {len(problems)} with a problem")
    mx.synchronize()
    mx.clear_streams()
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
