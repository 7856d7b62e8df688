"""What it costs prefill to be held to a bound on running ahead of the device: the same prompt, three ways in turns.

    python -m bench.run_ahead [--shape qwen3-4b] [--tokens 32768] [--turns 6] [--seconds 60] [--json FILE]

`held`: as the server does it; `waits only`: waits for the chunk before as `held` does, under a bound that is never met;
`free`: no bound and no waiting, which is the baseline of both ratios. All on one model in one process, in an order that
changes from turn to turn, after a turn of each that does not count. Told: median seconds, the median over the turns of
the ratio to `free` with its quartiles, and what a chunk takes longer.

Where nothing is held (`most_ahead_bytes` is null: a CPU, Metal), `--bound SIZE` says what to hold to.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx

from adapters.mlx import memory_shape
from adapters.mlx.assembly import ModelFacts, assemble
from adapters.mlx.device import describe_device, on_cpu, preferred_grid
from adapters.mlx.model import MlxModel
from adapters.mlx.peak_meter import PeakMeter
from application.services.token_side.model_loads import whole
from bench.decode import prompt_of
from bench.results import Results
from bench.shapes import SHAPES, build_shape
from domain.byte_size import ByteSize
from domain.ids import ModelId, SequenceId
from domain.memory.correction import PeakCorrection
from domain.memory.shape import MemoryShape

NEVER_MET_BYTES = 1 << 50
HELD, WAITS, FREE = "held", "waits only", "free"
MIB = 1 << 20


class Meter(PeakMeter):
    """Measures no chunk, because measuring waits for it. `way`: which `most_ahead` is told."""

    def __init__(self, shape: MemoryShape, way: str) -> None:
        super().__init__(shape, PeakCorrection(), lambda _: None, is_ahead=True)
        self._way = way

    def begin(self, finish: Callable[[], None]) -> bool:
        return False

    def most_ahead(self, position: int, chunk: int, num_logits: int) -> int | None:
        if self._way == HELD:
            return super().most_ahead(position, chunk, num_logits)
        return NEVER_MET_BYTES if self._way == WAITS else None


def prefill_s(model: MlxModel, meter: Meter, tokens: list[int], chunk: int) -> tuple[float, float]:
    """Seconds, and the most held beyond what was held, in MiB."""
    model._meter = meter
    id = SequenceId(1)
    model.open(id)
    mx.synchronize()
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    start = time.perf_counter()
    for at in range(0, len(tokens), chunk):
        model.prefill(id, tokens[at : at + chunk])
    mx.synchronize()
    taken_s, most = time.perf_counter() - start, mx.get_peak_memory() - before
    model.close([id])
    return taken_s, most / MIB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny" if on_cpu() else "qwen3-4b", choices=SHAPES)
    parser.add_argument("--tokens", type=int, default=4096 if on_cpu() else 32_768)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60, help="of turns: no other is begun after so long")
    parser.add_argument("--bound", help="bytes, as 2GiB. Default: the device's")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.bound:
        bound = ByteSize.parse(options.bound).num_bytes
        memory_shape.most_ahead_bytes = lambda: bound
    results = Results(options.json, "run_ahead", mlx_device=describe_device())
    network, config = build_shape(options.shape)
    model = whole(assemble(network, ModelId(options.shape), ModelFacts(config)))
    shape, chunk = model.description.memory, preferred_grid()
    tokens = prompt_of(options.tokens, 1, model.description.vocab_size)
    held_bytes = shape.held_ahead_bytes(chunk, len(tokens))
    print(
        f"{options.shape}, {len(tokens):,} tokens, {describe_device()}, held to {held_bytes / MIB:,.0f} MiB", flush=True
    )
    results.add("bound", held_bytes=held_bytes, chunk=chunk, tokens=len(tokens))
    meters = {way: Meter(shape, way) for way in (HELD, WAITS, FREE)}
    for meter in meters.values():
        prefill_s(model, meter, tokens, chunk)
    taken: dict[str, list[float]] = {way: [] for way in meters}
    deadline_s = time.monotonic() + options.seconds
    for turn in range(options.turns):
        if turn and time.monotonic() > deadline_s:
            print(f"{turn} turns: the time is over", flush=True)
            break
        ways = list(meters)
        for way in ways[turn % 3 :] + ways[: turn % 3]:
            spent_s, most_mib = prefill_s(model, meters[way], tokens, chunk)
            taken[way].append(spent_s)
            results.add("turn", turn=turn, way=way, s=spent_s, most_mib=most_mib)
    for way, found in taken.items():
        ratios = [one / free for one, free in zip(found, taken[FREE], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        middle_s, ratio = statistics.median(found), statistics.median(ratios)
        chunk_ms = 1e3 * (middle_s - statistics.median(taken[FREE])) / (len(tokens) / chunk)
        results.add(way, s=middle_s, over_free=ratio, low=low, high=high, chunk_ms=chunk_ms, turns=len(found))
        print(f"{way:>10} {middle_s:8.3f} s  {ratio:.3f} of free ({low:.3f} to {high:.3f}), {chunk_ms:+.2f} ms a chunk")
    model.release()
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
