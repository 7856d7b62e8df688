"""A model opened for quantising: what is written, by names and shapes, and each tensor once it is asked for.

mlx-lm builds the network, and its matrices are chosen as `quantize_model` chooses them, so that the result is that of
its `convert`, byte for byte. But nothing is computed as one graph: matrices are read, cast and quantised one at a time
and in runs of rows, which changes no bit, since each group of values is quantised alone. Experts that the files hold
one by one are never stacked in memory.
"""

from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_unflatten

from adapters.mlx.loading.network import open_network
from adapters.mlx.quantising.rounding import PIECE_BYTES, quantised, runs_of
from adapters.mlx.runtime.arrays import clear_cache, evaluate, parameters
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.speculation.drafting import nn
from adapters.mlx.speculation.heads import text_model
from domain.models.capability import ModelUse
from domain.models.quantisation import PlannedMatrix, Quantisation, Recipe

_PIECE_COPIES = 40
"""The memory of quantising a piece, in pieces, at most: 39 for nvfp4, 21 for mxfp4 and 2 for affine on a CPU."""

_DTYPES = ("float16", "bfloat16", "float32")

_OVERRIDDEN = ("model_file", "tie_word_embeddings", "eos_token_id")
"""The settings of a configuration that loading here may replace."""

FindRecipe = Callable[[Sequence[str], int], Recipe]
"""Returns the recipe for a network, by the paths of its modules and the number of its layers."""


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor to be written."""

    name: str
    shape: tuple[int, ...]
    dtype: mx.Dtype

    @property
    def num_bytes(self) -> int:
        return prod(self.shape) * self.dtype.size


@dataclass(slots=True)
class Step:
    """The outputs that are made of one source: of a matrix its quantised form, of anything else a cast copy. `source`:
    not read yet. `rows`: the arrays that it is a stack of; empty for none. `cast`: the dtype to quantise from.
    `moments`: for fitted ranges; None for MLX's own."""

    path: str
    outputs: list[Output]
    source: mx.array | None
    cast: mx.Dtype
    form: Quantisation | None = None
    rows: tuple[mx.array, ...] = ()
    is_indivisible: bool = False
    moments: mx.array | None = None

    @property
    def planned(self) -> PlannedMatrix:
        """Its part of a plan; before `pieces`."""
        assert self.source is not None
        held = self.source.nbytes // max(1, len(self.rows))
        step_bytes = held + min(held, PIECE_BYTES) * _PIECE_COPIES
        num_bytes = sum(output.num_bytes for output in self.outputs)
        return PlannedMatrix(self.path, self.form, self.source.size, num_bytes, step_bytes, self.is_indivisible)

    def pieces(self) -> Iterator[list[mx.array]]:
        """Computes the outputs, each in pieces that follow each other, and frees the source. Once only."""
        assert self.source is not None
        parts = list(self.rows or (self.source,))[::-1]
        self.source, self.rows = None, ()  # a stack refers to all of its rows
        while parts:
            part = parts.pop()
            evaluate([part])
            for run in runs_of(part):
                piece = self._made(run)
                evaluate(piece)
                yield piece
            del part
            clear_cache()

    def _made(self, run: mx.array) -> list[mx.array]:
        if self.form is None:
            return [mx.contiguous(run.astype(self.cast))]
        made = quantised(run.astype(self.cast), self.form, self.moments)
        return [mx.contiguous(array) for array in made]


@dataclass(frozen=True, slots=True)
class Conversion:
    """`config`: of the result, as convert writes it. `outputs`: in the order of the files. `num_parameters`: of the
    network."""

    config: Mapping[str, Any]
    outputs: list[Output]
    steps: list[Step]
    num_parameters: int


def open_conversion(
    folder: Path,
    use: ModelUse,
    default: Quantisation,
    find: FindRecipe | None = None,
    moments: Mapping[str, mx.array] = MappingProxyType({}),
) -> Conversion:
    """Opens a model; nothing is read. `default`: the form of all matrices, or with a recipe the one that config.json
    names first. `moments`: of matrices with fitted ranges, by path. Raises anything."""
    with _stacks() as stacked:
        network, config = open_network(folder, use)
    utils = mlx_lm_module("utils")
    stored = utils.load_config(folder)
    for name in _OVERRIDDEN:
        config.pop(name, None)
        config |= {name: stored[name]} if name in stored else {}
    sources = dict(parameters(network))
    _cast(network, config)
    casts = {name: array.dtype for name, array in parameters(network)}
    recipe = None if find is None else find([path for path, _ in network.named_modules()], len(network.layers))
    indivisible = set[str]()
    own, table = _own_rule(network), dict[str, Any](default.table)

    def wanted(path: str, module: Any) -> Any:
        if not hasattr(module, "to_quantized"):
            return False
        answer: object = True if own is None else own(path, module)
        if answer is True and recipe is not None:
            form = recipe(path)
            answer = False if form is None else form.table
        named = cast("dict[str, Any]", answer) if isinstance(answer, dict) else None
        group = default.group if named is None else named.get("group_size", default.group)
        if answer and module.weight.shape[-1] % group:
            indivisible.add(path)
            return False
        if named is not None:
            table[path] = named
        return cast(Any, answer)

    nn.quantize(network, default.group, default.bits, mode=default.mode, class_predicate=wanted)
    config |= {"quantization": table, "quantization_config": table}
    modules = [(path, module) for path, module in network.named_modules() if "scales" in module]
    forms = {
        path: Quantisation(getattr(module, "mode", "affine"), module.bits, module.group_size)
        for path, module in modules
    }
    steps = _steps(parameters(network), sources, casts, forms, indivisible)
    for step in steps:
        step.rows = stacked.get(id(step.source), ())
        step.moments = moments.get(step.path) if step.form is not None else None
    outputs = [Output(name, tuple(array.shape), array.dtype) for name, array in parameters(network)]
    return Conversion(config, outputs, steps, int(utils.get_total_parameters(network)))


def _steps(
    made: Sequence[tuple[str, mx.array]],
    sources: Mapping[str, mx.array],
    casts: Mapping[str, mx.Dtype],
    forms: Mapping[str, Quantisation],
    indivisible: Collection[str],
) -> list[Step]:
    """`made`: the parameters of the quantised network; `sources`: those of the network before, and their dtypes once
    cast."""
    steps: dict[str, Step] = {}
    for name, array in made:
        output = Output(name, tuple(array.shape), array.dtype)
        path, _, leaf = name.rpartition(".")
        key = f"{path}.weight" if path in forms and leaf in ("scales", "biases") else name
        if key in steps:
            steps[key].outputs.append(output)
        elif key in sources and (path in forms or sources[key].shape == array.shape):
            form = forms.get(path) if leaf == "weight" else None
            steps[key] = Step(path, [output], sources[key], casts[key], form, is_indivisible=path in indivisible)
        else:  # made by the family's own code, such as matrices that are quantised as one
            steps[name] = Step(path, [output], array, array.dtype)
    return list(steps.values())


def _own_rule(network: Any) -> Callable[[str, Any], Any] | None:
    """The family's own rule, which recipes must not replace: upstream's do, and routers of mixtures lose by it."""
    for one in (network, text_model(network)):
        if (rule := getattr(one, "quant_predicate", None)) is not None:
            return cast(Callable[[str, Any], Any], rule)
    return None


def _cast(network: Any, config: Mapping[str, Any]) -> None:
    """Casts floating parameters lazily to the dtype that config.json names, as convert does."""
    text = cast("Mapping[str, Any]", config.get("text_config") or {})
    named = config.get("torch_dtype") or text.get("dtype")
    if named not in _DTYPES:
        return
    may_cast = cast("Callable[[str], bool]", getattr(network, "cast_predicate", _any))
    dtype: mx.Dtype = getattr(mx, named)
    changed = [
        (name, array.astype(dtype))
        for name, array in parameters(network)
        if may_cast(name) and mx.issubdtype(array.dtype, mx.floating)
    ]
    network.update(tree_unflatten(changed))


def _any(_name: str) -> bool:
    return True


@contextmanager
def _stacks() -> Generator[dict[int, tuple[mx.array, ...]]]:
    """Notes of every `mx.stack` of whole arrays along the first axis meanwhile, by the result's identity, what it is
    made of: families stack their experts so."""
    real, found = cast(Any, mx.stack), dict[int, tuple[mx.array, ...]]()
    kept: list[mx.array] = []  # identities stay theirs

    def stack(arrays: Sequence[mx.array], axis: int = 0, **named: Any) -> mx.array:
        result: mx.array = real(arrays, axis, **named)
        if axis == 0:
            found[id(result)] = tuple(arrays)
            kept.append(result)
        return result

    setattr(mx, "stack", stack)  # noqa: B010 - an assignment would need an ignore for two checkers
    try:
        yield found
    finally:
        setattr(mx, "stack", real)  # noqa: B010
