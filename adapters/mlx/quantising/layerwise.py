"""Variants of a network, computed beside it layer by layer, so that one layer of it is in memory at a time.

A variant has other values for some matrices. Its hidden states equal the network's up to the first of them, and from
there on each layer computes both. The network's own code runs: its layers' classes are intercepted, and the states
behind the last layer are put back in to get logits. A family whose layers give more than one array is refused.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.runtime.arrays import clear_cache, evaluate, parameters
from adapters.mlx.speculation.drafting import nn
from domain.errors import ModelLoadFailed

Weights = Callable[[str, mx.array], mx.array]
"""Returns the value of a matrix in a variant, by its path and the network's value."""


TOKENS_AT_ONCE = 8192
"""The most tokens of variants that pass a layer together."""


class Unmeasurable(ModelLoadFailed):
    """The layers of a family cannot be computed one by one."""


@dataclass(slots=True)
class Variant:
    """`paths`: of the modules whose matrix it changes by `weights`. `begun`: its states where they differ from the
    network's."""

    paths: tuple[str, ...]
    weights: Weights
    begun: mx.array | None = field(default=None, init=False)

    def state(self, base: mx.array) -> mx.array:
        return base if self.begun is None else self.begun


class Layerwise:
    """One pass over one network; `variants` are computed beside it. `wrote`: called after each layer with the number
    of layers that are done, and may raise to stop."""

    def __init__(self, network: Any, variants: Sequence[Variant]) -> None:
        self._network, self.variants = network, variants
        self._modules = dict(network.named_modules())
        names = {id(module): path for path, module in self._modules.items()}
        self.layers: list[Any] = list(network.layers)
        self._prefixes = [f"{names[id(layer)]}." for layer in self.layers]
        self._index = {id(layer): at for at, layer in enumerate(self.layers)}
        self._base = mx.zeros((0,))
        self._noted: dict[str, tuple[mx.array, int]] = {}

    def layer_of(self, path: str) -> int | None:
        """Returns the index of the layer that a module is in; None for one outside."""
        return next((at for at, prefix in enumerate(self._prefixes) if path.startswith(prefix)), None)

    def run(self, tokens: mx.array, passed: Callable[[int], None]) -> None:
        """Computes the states of all variants behind the last layer. `tokens`: [rows, length]. Each layer's weights are
        freed. Raises Unmeasurable."""
        start = self._input(tokens)
        for variant in self.variants:
            with self._changed(variant, None):
                begun = self._input(tokens)
                evaluate([begun])
            variant.begun = None if bool(mx.array_equal(begun, start)) else begun
        del start
        with self._intercepted(partial(self._compute, passed)):
            self._network(tokens)

    def logits(self, tokens: mx.array, variant: Variant | None, row: int) -> mx.array:
        """Returns float32 [length, vocabulary] of one row, of the network itself without a variant. After `run`."""
        state = (self._base if variant is None else variant.state(self._base))[row : row + 1]

        def put_back(_layer: Any, _real: Any, _x: mx.array, *_: Any, **__: Any) -> mx.array:
            return state

        notes = self._noting() if variant is None else nullcontext()
        with self._intercepted(put_back), self._changed(variant, None), notes:
            logits = cast(mx.array, self._network(tokens[row : row + 1]))[0].astype(mx.float32)
            evaluate([logits])
        return logits

    def moments(self, path: str) -> mx.array | None:
        """Returns the mean square of each input of a linear layer, float32 [inputs], over what the network itself has
        computed; None for another module, or before it was computed."""
        noted = self._noted.get(path)
        return None if noted is None else noted[0] / noted[1]

    def _compute(
        self,
        passed: Callable[[int], None],
        layer: Any,
        real: Callable[..., Any],
        x: mx.array,
        *args: Any,
        **kwargs: Any,
    ) -> mx.array:
        at = self._index[id(layer)]
        with self._noting():
            after = real(layer, x, *args, **kwargs)
        if not isinstance(after, mx.array) or after.shape != x.shape:
            raise Unmeasurable("its layers give more than hidden states")
        evaluate([after])
        unchanged: list[Variant] = []
        for variant in self.variants:
            if not any(path.startswith(self._prefixes[at]) for path in variant.paths):
                unchanged += [variant] if variant.begun is not None else []
                continue
            with self._changed(variant, at):
                variant.begun = cast(mx.array, real(layer, variant.state(x), *args, **kwargs))
                evaluate([variant.begun])
        most = max(1, TOKENS_AT_ONCE // (x.shape[0] * x.shape[1]))
        for start in range(0, len(unchanged), most):
            some = unchanged[start : start + most]
            joined = mx.concatenate([variant.state(x) for variant in some])
            repeated = partial(_repeated, x.shape[0], len(some))
            outputs = mx.split(
                real(layer, joined, *map(repeated, args), **{k: repeated(v) for k, v in kwargs.items()}), len(some)
            )
            evaluate(outputs)
            for variant, output in zip(some, outputs, strict=True):
                variant.begun = output
        layer.update(tree_unflatten([(name, mx.zeros((0,))) for name, _ in parameters(layer)]))
        clear_cache()
        self._base = after
        passed(at + 1)
        return after

    def _input(self, tokens: mx.array) -> mx.array:
        """The states before the first layer."""

        def take(_layer: Any, _real: Any, x: mx.array, *_: Any, **__: Any) -> mx.array:
            raise _Taken(x)

        with self._intercepted(take):
            try:
                self._network(tokens)
            except _Taken as taken:
                return taken.states
        raise Unmeasurable("its layers are not called one by one")

    @contextmanager
    def _changed(self, variant: Variant | None, layer: int | None) -> Generator[None]:
        """Gives the modules in a layer, or outside of all, the matrices of a variant meanwhile."""
        paths = [] if variant is None else [path for path in variant.paths if self.layer_of(path) == layer]
        kept = {path: cast(mx.array, self._modules[path].weight) for path in paths}
        try:
            for path, weight in kept.items():
                assert variant is not None
                self._modules[path].weight = variant.weights(path, weight).astype(weight.dtype)
            yield
        finally:
            for path, weight in kept.items():
                self._modules[path].weight = weight

    @contextmanager
    def _noting(self) -> Generator[None]:
        """Notes the inputs of linear layers, of experts too."""
        names = {id(module): path for path, module in self._modules.items()}
        kinds: set[Any] = {type(module) for module in self._modules.values() if hasattr(module, "to_quantized")}
        real: dict[Any, Any] = {kind: kind.__call__ for kind in kinds if not issubclass(kind, nn.Embedding)}

        def noting(kind: Any) -> Callable[..., Any]:
            def called(module: Any, x: mx.array, *args: Any, **kwargs: Any) -> Any:
                path = names.get(id(module))
                if path is not None and x.shape[-1] == module.weight.shape[-1]:
                    squares = mx.square(mx.reshape(x, (-1, x.shape[-1])).astype(mx.float32))
                    total, count = self._noted.get(path, (mx.zeros((x.shape[-1],)), 0))
                    self._noted[path] = total + mx.sum(squares, axis=0), count + squares.shape[0]
                    evaluate([self._noted[path][0]])
                return real[kind](module, x, *args, **kwargs)

            return called

        try:
            for kind in real:
                kind.__call__ = noting(kind)
            yield
        finally:
            for kind in real:
                kind.__call__ = real[kind]

    @contextmanager
    def _intercepted(self, call: Callable[..., mx.array]) -> Generator[None]:
        """Calls of the layers go to `call` with the layer and its class's own function first."""
        kinds: set[Any] = {type(layer) for layer in self.layers}
        real: dict[Any, Any] = {kind: kind.__call__ for kind in kinds}

        def intercept(kind: Any) -> Callable[..., Any]:
            def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
                if id(layer) not in self._index:
                    return real[kind](layer, *args, **kwargs)
                return call(layer, real[kind], *args, **kwargs)

            return called

        try:
            for kind in kinds:
                kind.__call__ = intercept(kind)
            yield
        finally:
            for kind in kinds:
                kind.__call__ = real[kind]


def _repeated(num_rows: int, count: int, argument: Any) -> Any:
    """An argument of a layer for so many variants: what has a row for each row of the text is repeated."""
    if num_rows > 1 and isinstance(argument, mx.array) and argument.ndim > 2 and argument.shape[0] == num_rows:
        return mx.concatenate([argument] * count)
    return argument


class _Taken(Exception):
    def __init__(self, states: mx.array) -> None:
        super().__init__()
        self.states = states


# ---- what differs ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Quality:
    """A variant against its source, over a text. `kl`: the mean of KL(source || variant), in nats a token.
    `agreement`: the share of positions with the same likeliest token. Perplexities of both."""

    kl: float
    agreement: float
    perplexity: float
    source_perplexity: float
    num_tokens: int


def qualities(passed: Layerwise, tokens: mx.array) -> Iterator[Quality]:
    """Returns the quality of every variant of a pass that has run. `tokens`: [rows, length], as it ran."""
    num_rows, length = tokens.shape
    sums = [[0.0, 0.0, 0.0] for _ in passed.variants]
    source_loss = 0.0
    for row in range(num_rows):
        base = passed.logits(tokens, None, row)
        base = base - mx.logsumexp(base, axis=-1, keepdims=True)
        best, wanted = mx.argmax(base, axis=-1), tokens[row, 1:]
        source_loss -= _of_tokens(base, wanted)
        for variant, total in zip(passed.variants, sums, strict=True):
            other = passed.logits(tokens, variant, row)
            other = other - mx.logsumexp(other, axis=-1, keepdims=True)
            total[0] += float(mx.sum(mx.exp(base) * (base - other)))
            total[1] += float(mx.sum(mx.argmax(other, axis=-1) == best))
            total[2] -= _of_tokens(other, wanted)
            clear_cache()
    count, predicted = num_rows * length, num_rows * (length - 1)
    for kl, same, loss in sums:
        yield Quality(kl / count, same / count, _exp(loss / predicted), _exp(source_loss / predicted), count)


def _of_tokens(logs: mx.array, wanted: mx.array) -> float:
    return float(mx.sum(mx.take_along_axis(logs[:-1], wanted[:, None].astype(mx.int32), axis=-1)))


def _exp(value: float) -> float:
    return float(mx.exp(mx.array(value)))
