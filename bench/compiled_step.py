"""What a decode step costs the host, and what else it could be: compiled, over caches of a fixed size, without a mask.

    python -m bench.compiled_step [--shape llama-8b] [--rows 1,8] [--context 1000] [--ways today,compiled]
        [--steps 16] [--turns 6] [--seconds 60] [--build-only] [--json FILE]

Every way feeds the same network, chooses by argmax and queues a step before it reads the one before, as the server
does. All take turns in one process, each over caches of its own; of the rows, of random contents, each is one token
shorter than the one before.

    today      the server's caches: slices of a buffer, and a mask where rows differ in length
    shared     the same without what lets rows come and go
    unmasked   shared, without a mask: as the server decodes rows of equal lengths, and wrong here
    whole      attention over the whole buffer, what is beyond a row masked
    compiled   whole, under mx.compile: states are inputs and outputs, positions are arrays
    fused      as the server on CUDA: today, with heads that share keys asked as several queries (`caches/fused_rows`)
    doubled    whole, each query twice and the mask added: CUDA fuses attention with a mask for two queries, not for one

Told of a step: medians of all its time, of building the graph (and of that thread's processor time alone), of queueing
it, and of waiting for the step before; operations in the first one's graph; what the first step took (compiling,
kernels); how far the first logits are from today's; and how many tokens are today's, until one is not. The baseline is
`today`.
`--build-only` computes nothing: any dense shape, on any machine, without its weights.
"""

import argparse
import importlib
import io
import statistics
import time
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.arrays import evaluate, evaluate_soon, parameters
from adapters.mlx.caches.cuda_attention import CudaAttention
from adapters.mlx.caches.layout import Caches
from adapters.mlx.caches.library import lib
from adapters.mlx.caches.rows import make_room, merge
from adapters.mlx.device import describe_device, on_cpu
from adapters.mlx.file_limit import mlx_lm_module
from bench.results import Results
from bench.shapes import SHAPES, build_shape

_mx: Any = mx

GROWTH = 256
"""Tokens by which mlx-lm's caches grow: a compiled step would be compiled anew whenever they do."""


@dataclass(frozen=True, slots=True)
class Way:
    """None of it: the server's caches."""

    is_own: bool = True
    is_whole: bool = False
    is_masked: bool = True
    is_compiled: bool = False
    is_doubled: bool = False
    is_fused: bool = False


WAYS = {
    "today": Way(is_own=False),
    "fused": Way(is_own=False, is_fused=True),
    "shared": Way(),
    "unmasked": Way(is_masked=False),
    "whole": Way(is_whole=True),
    "compiled": Way(is_whole=True, is_compiled=True),
    "doubled": Way(is_whole=True, is_doubled=True),
}


class FixedRows:
    """One layer's rows in a buffer that never grows. `slot`: where the token comes; an array where it is compiled."""

    def __init__(self, way: Way, keys: mx.array, values: mx.array, slot: Any, offset: mx.array, mask: Any) -> None:
        self.keys, self.values, self.offset = keys, values, offset
        self._way, self._slot, self._mask = way, slot, mask

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        if self._way.is_compiled:
            self.keys = mx.slice_update(self.keys, keys, self._slot, [2])
            self.values = mx.slice_update(self.values, values, self._slot, [2])
            return self.keys, self.values
        end = self._slot + 1
        self.keys[:, :, self._slot : end] = keys
        self.values[:, :, self._slot : end] = values
        if self._way.is_whole:
            return self.keys, self.values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def make_mask(self, _num_tokens: int, **_: object) -> Any:
        return self._mask


class Steps:
    """Decode steps one way. `times`: of each, (all, build, build's processor time, queue, wait) in ms."""

    def __init__(
        self, network: Any, heads: int, name: str, contents: list[tuple[mx.array, mx.array]], context: int
    ) -> None:
        self.name = name
        self.times: list[tuple[float, float, float, float, float]] = []
        self.tokens: list[list[int]] = []
        self.first_logits: mx.array | None = None
        self.first_ms = 0.0
        self.operations: Counter[str] = Counter()
        self._network, self._way, self._end = network, WAYS[name], context
        self._heads, self._rows = heads, contents[0][0].shape[0]
        self._waiting = mx.zeros(self._rows, mx.uint32)
        if self._way.is_own:
            self._buffers = [(mx.array(keys), mx.array(values)) for keys, values in contents]
        else:
            rows = [_plain(contents, row, context) for row in range(self._rows)]
            self._caches = rows[0] if len(rows) == 1 else merge(rows)
        self._fused = CudaAttention(mlx_lm_module("models.base").scaled_dot_product_attention)
        self._call: Callable[..., Any] = mx.compile(self._own) if self._way.is_compiled else self._own

    def build(self) -> mx.array:
        """Logits [rows, vocab] of the next step, lazy."""
        tokens = self._waiting[:, None]
        if not self._way.is_own:
            make_room(self._caches, 1)
            with _attending(self._network, self._fused) if self._way.is_fused else nullcontext():
                return self._network(tokens, cache=self._caches)[:, -1]  # type: ignore[no-any-return]
        offset = mx.array([self._end - row for row in range(self._rows)])
        slot = mx.array([self._end]) if self._way.is_compiled else self._end
        with _attending(self._network, _doubled) if self._way.is_doubled else nullcontext():
            logits, self._buffers = self._call(tokens, self._buffers, slot, offset)
        self._end += 1
        return logits  # type: ignore[no-any-return]

    def first(self, is_computed: bool) -> None:
        began = time.perf_counter()
        logits = self.build()
        self.operations = _operations(logits)
        if is_computed:
            self.first_logits = logits
            self._waiting = mx.argmax(logits, axis=-1)
            evaluate([self._waiting, logits])
        self.first_ms = _ms(began)

    def step(self, is_computed: bool) -> None:
        began, thread_s = time.perf_counter(), time.thread_time()
        following = mx.argmax(self.build(), axis=-1)
        build_ms, build_cpu_ms = _ms(began), 1e3 * (time.thread_time() - thread_s)
        if not is_computed:
            self.times.append((build_ms, build_ms, build_cpu_ms, 0.0, 0.0))
            return
        built = time.perf_counter()
        evaluate_soon([following])
        queue_ms, queued = _ms(built), time.perf_counter()
        self.tokens.append(cast(list[int], self._waiting.tolist()))
        self.times.append((_ms(began), build_ms, build_cpu_ms, queue_ms, _ms(queued)))
        self._waiting = following

    def _own(self, tokens: mx.array, buffers: Sequence[tuple[mx.array, mx.array]], slot: Any, offset: mx.array) -> Any:
        mask = self._mask(slot, buffers[0][0])
        caches = [FixedRows(self._way, keys, values, slot, offset, mask) for keys, values in buffers]
        logits = self._network(tokens, cache=caches)[:, -1]
        return logits, [(cache.keys, cache.values) for cache in caches]

    def _mask(self, slot: Any, keys: mx.array) -> mx.array | None:
        """As the server's caches make it, of all slots where attention is over all."""
        if not self._way.is_masked or (self._rows == 1 and not self._way.is_whole):
            return None
        slots = mx.arange(keys.shape[2] if self._way.is_whole else slot + 1)
        starts = mx.arange(self._rows)[:, None, None, None]
        mask = (slots >= starts) & (slots <= slot)
        if not self._way.is_doubled:
            return mask
        added = mx.where(mask, 0, -mx.inf).astype(keys.dtype)
        return mx.contiguous(mx.broadcast_to(added, (self._rows, self._heads, 2, keys.shape[2])))


@dataclass(slots=True)
class Told:
    """What is said of one way beside today."""

    figures: dict[str, Any] = field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, one: Steps, today: Steps) -> "Told":
        names = ("step_ms", "build_ms", "build_cpu_ms", "queue_ms", "wait_ms")
        medians = [statistics.median(column) for column in zip(*one.times, strict=True)]
        figures: dict[str, Any] = dict(zip(names, medians, strict=True))
        base_ms = statistics.median(times[0] for times in today.times)
        figures |= {"over_today": figures["step_ms"] / base_ms, "operations": one.operations.total()}
        figures |= {"first_ms": one.first_ms, "steps": len(one.times), "by_kind": dict(one.operations.most_common())}
        if one.first_logits is not None and today.first_logits is not None:
            apart = mx.abs(one.first_logits.astype(mx.float32) - today.first_logits.astype(mx.float32)).max().item()
            pairs = list(zip(one.tokens, today.tokens, strict=False))
            equal = next((at for at, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
            figures |= {"logits_apart": apart, "equal_steps": equal}
        return cls(figures)


def _plain(contents: Sequence[tuple[mx.array, mx.array]], row: int, context: int) -> Caches:
    caches: Caches = []
    for keys, values in contents:
        cache = lib.KVCache()
        cache.keys, cache.values = keys[row : row + 1, :, row:], values[row : row + 1, :, row:]
        cache.offset = context - row
        caches.append(cache)
    return caches


def _contents(config: dict[str, Any], rows: int, context: int, slots: int, is_computed: bool) -> Any:
    """Random tokens, and zeros after them. The first slots of later rows are not theirs."""
    heads, layers = config["num_key_value_heads"], config["num_hidden_layers"]
    dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]

    def buffer() -> mx.array:
        if not is_computed:
            return mx.broadcast_to(mx.zeros((), mx.bfloat16), (rows, heads, slots, dim))
        tokens = mx.random.normal((rows, heads, context, dim), mx.bfloat16)
        whole = mx.concatenate([tokens, mx.zeros((rows, heads, slots - context, dim), mx.bfloat16)], axis=2)
        evaluate([whole])
        return whole

    return [(buffer(), buffer()) for _ in range(layers)]


def _doubled(queries: mx.array, keys: Any, values: Any, *, scale: float, mask: Any, **_: object) -> mx.array:
    """Attention of every query twice, of which one is taken."""
    twice = mx.concatenate([queries, queries], axis=2)
    return mx.fast.scaled_dot_product_attention(twice, keys, values, scale=scale, mask=mask)[:, :, :1]


@contextmanager
def _attending(network: Any, attention: Callable[..., mx.array]) -> Generator[None]:
    """In place of mlx-lm's own, in the module of the network's family."""
    module: Any = importlib.import_module(type(network).__module__)
    before = module.scaled_dot_product_attention
    module.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        module.scaled_dot_product_attention = before


def _operations(logits: mx.array) -> Counter[str]:
    """Of a graph that was not computed, by kind, views too. On a CPU MLX takes rope and norms apart."""
    told = io.StringIO()
    _mx.export_to_dot(told, logits)
    return Counter(line.split('label ="')[1].split('"')[0] for line in told.getvalue().splitlines() if "label" in line)


def _unfilled(name: str) -> tuple[Any, dict[str, Any]]:
    """A dense network whose weights are never made."""
    config, bits = SHAPES[name]
    if bits:
        raise SystemExit(f"--build-only takes dense shapes, and {name} is quantised")
    module = importlib.import_module(f"{mlx_lm_module('models').__name__}.{config['model_type']}")
    network = module.Model(module.ModelArgs.from_dict(config))
    zero = mx.zeros((), mx.bfloat16)
    network.update(tree_unflatten([(name, mx.broadcast_to(zero, one.shape)) for name, one in parameters(network)]))
    evaluate([weight for _, weight in parameters(network)])  # views of one zero
    return network, config


def _ms(since_s: float) -> float:
    return 1e3 * (time.perf_counter() - since_s)


def compare(network: Any, config: dict[str, Any], rows: int, options: argparse.Namespace, results: Results) -> None:
    is_computed, context = not options.build_only, options.context
    num_steps = options.steps * (options.turns + 1) + 1
    slots = -(-(context + num_steps) // GROWTH) * GROWTH
    contents = _contents(config, rows, context, slots, is_computed)
    ways: list[Steps] = []
    for name in options.ways.split(","):
        try:
            one = Steps(network, config["num_attention_heads"], name, contents, context)
            one.first(is_computed)
            for _ in range(options.steps):  # kernels, and buffers that are used again: not counted
                one.step(is_computed)
            one.times.clear()
            ways.append(one)
        except Exception as error:
            results.add(name, rows=rows, error=str(error))
            print(f"{rows:3d} rows  {name:9s} failed: {error}", flush=True)
    del contents
    deadline_s = time.monotonic() + options.seconds
    for turn in range(options.turns):
        if turn and time.monotonic() > deadline_s:
            print(f"{turn} turns: the time is over", flush=True)
            break
        first = turn % len(ways)
        for one in ways[first:] + ways[:first]:
            for _ in range(options.steps):
                one.step(is_computed)
    today = next(one for one in ways if one.name == "today")
    for one in ways:
        told = Told.of(one, today).figures
        results.add(one.name, rows=rows, context=context, slots=slots, **told)
        print(
            f"{rows:3d} rows  {one.name:9s} {told['step_ms']:8.3f} ms ({told['over_today']:.3f} of today)"
            f"  build {told['build_ms']:6.3f} (cpu {told['build_cpu_ms']:6.3f})  queue {told['queue_ms']:7.3f}"
            f"  wait {told['wait_ms']:7.3f}  {told['operations']:5d} operations  first {told['first_ms']:7.1f}"
            + (f"  apart {told['logits_apart']:.4f}, {told['equal_steps']} equal" if "equal_steps" in told else ""),
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="tiny" if on_cpu() else "llama-8b", choices=SHAPES)
    parser.add_argument("--rows", default="1,8")
    parser.add_argument("--context", type=int, default=300 if on_cpu() else 1000, help="tokens of a row")
    parser.add_argument("--ways", default=",".join(WAYS), help="`today` must be one of them")
    parser.add_argument("--steps", type=int, default=16, help="of a way, in a turn")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=60, help="of turns, a number of rows: no other is begun then")
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not {"today"} <= set(options.ways.split(",")) <= set(WAYS):
        parser.error(f"--ways: today, and of {', '.join(WAYS)}")
    results = Results(options.json, "compiled_step", mlx_device=describe_device())
    network, config = (_unfilled if options.build_only else build_shape)(options.shape)
    print(f"{options.shape}, {options.context:,} tokens a row, {describe_device()}", flush=True)
    for count in options.rows.split(","):
        compare(network, config, int(count), options, results)
        mx.clear_cache()
    mx.synchronize()
    mx.clear_streams()


if __name__ == "__main__":
    main()
