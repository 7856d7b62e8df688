"""A Quantiser on this process's MLX: opens, measures, writes and compares. Memory: one tensor, or one layer."""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import mlx.core as mx

from adapters.mlx.loading.files import StoredTensor, load_weights, network_tensors, read_config, weights_of
from adapters.mlx.loading.network import cast_network, open_network
from adapters.mlx.loading.weights_digest import digest_folder
from adapters.mlx.quantising import sensitivity
from adapters.mlx.quantising.beside import TOWER, copy_files, copy_tensors, tensors_beside
from adapters.mlx.quantising.conversion import Conversion, FindRecipe, open_conversion
from adapters.mlx.quantising.layerwise import Layerwise, Unmeasurable, Variant, qualities
from adapters.mlx.quantising.rounding import expanded
from adapters.mlx.quantising.writer import JOURNAL, ShardWriter, index_of, open_work, shards_of, sync_folder, write_file
from adapters.mlx.runtime.arrays import token_array
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from application.installation import installed_version
from application.ports.quantiser import (
    RECEIPT,
    QuantOrder,
    QuantPhase,
    QuantProgress,
    QuantQuality,
    QuantReceipt,
    partial_name,
)
from domain.errors import DomainError, InvalidRequest, ModelLoadFailed, require
from domain.memory.estimate import number
from domain.models.quantisation import MEASURED, MIXED, QuantPlan, assigned, by_rules, mixed
from domain.models.weight_files import INDEX

_LAYER = re.compile(r".*?\.\d+\.")

_QUANTISED = ("quantization", "quantization_config")

Report = Callable[[QuantProgress], None]

ROW_TOKENS = 128
"""The most tokens of each text: they are rows of one batch, cut to the length of the shortest."""


class MlxQuantiser:
    """See `Quantiser`. `encode`: the tokens of a text by the tokenizer of a folder; `texts`: those to measure on, and
    those to compare on. `memory_dir`: where digests and sensitivities are remembered; None for nowhere."""

    def __init__(
        self,
        encode: Callable[[Path, str], Sequence[int]],
        texts: tuple[Sequence[str], Sequence[str]],
        memory_dir: Path | None = None,
    ) -> None:
        self._encode, self._texts, self._memory_dir = encode, texts, memory_dir

    def plan(self, order: QuantOrder, report: Report) -> QuantPlan:
        return self._planned(order, self._opened(order, report))

    def run(self, order: QuantOrder, report: Report) -> QuantReceipt:
        folder, out = Path(order.source), Path(order.out)
        if out.exists() or out.is_symlink():
            raise InvalidRequest(f"{out} exists: remove it, or choose another name", param="out")
        digest = digest_folder(
            folder, self._memory_dir, lambda _, done, total: report(QuantProgress(QuantPhase.READING, done, total))
        )
        conversion = self._opened(order, report)
        plan = self._planned(order, conversion)
        forms = {matrix.path: str(matrix.form) for matrix in plan.matrices if matrix.form}
        recipe = {"form": asdict(order.form), "recipe": order.recipe, "forms": forms}
        versions = {name: version(name) for name in ("mlx", "mlx-lm")}
        identity = json.dumps([digest.hex(), recipe, versions, conversion.config], sort_keys=True, default=str)
        work = out.parent / partial_name(out.name)
        wanted = {"source": order.source, **asdict(order.form), "recipe": order.recipe, "size": order.most_bytes}
        with open_work(work, hashlib.sha256(identity.encode()).hexdigest(), wanted):
            self._fill(work, order, conversion, report)
            quality, note = self._compared(order, work, conversion, report) if order.checks else (None, "")
            receipt = {
                "source": {"folder": str(folder), "digest": digest.hex(), "weights": list(weights_of(folder).all)},
                "cairn": installed_version(),
                "versions": versions,
                **recipe,
                "bits_per_weight": round(plan.bits_per_weight, 4),
                "bytes": plan.num_bytes,
                "copied": plan.copied,
                "quality": asdict(quality) if quality else None,
                "note": note,
            }
            write_file(work / RECEIPT, json.dumps(receipt, indent=2).encode())
            _sync_files(work)
            work.rename(out)
            sync_folder(out.parent)
            (out / JOURNAL).unlink()
        return QuantReceipt(plan, quality, note)

    def _fill(self, work: Path, order: QuantOrder, conversion: Conversion, report: Report) -> None:
        """Writes everything but the receipt; the index and config.json last."""
        beside = self._beside(order, conversion)
        weight_map = self._write(conversion, work, report)
        for name, tensors in beside.items():
            if not (work / name).exists():
                copy_tensors(tensors, work / f"{name}.part")
                (work / f"{name}.part").rename(work / name)
        weight_map |= dict.fromkeys(beside.get(TOWER, ()), TOWER)
        copy_files(Path(order.source), work)
        num_bytes = sum(output.num_bytes for output in conversion.outputs)
        write_file(work / INDEX, index_of(weight_map, num_bytes, conversion.num_parameters))
        has_tower = TOWER in beside or _holds_tower(conversion)
        mlx_lm_module("utils").save_config(dict(conversion.config), work / "config.json", keep_vision_config=has_tower)

    # ---- the plan --------------------------------------------------------------------------------------------------

    def _opened(self, order: QuantOrder, report: Report) -> Conversion:
        folder = Path(order.source)
        config = read_config(folder)
        _check(folder, config, order)
        try:
            if order.recipe == MEASURED:
                return self._measured(order, report)
            return open_conversion(folder, order.use, order.form, _recipe(order))
        except DomainError:
            raise
        except Exception as error:
            raise ModelLoadFailed(f"{folder} cannot be quantised: {str(error) or type(error).__name__}") from error

    def _measured(self, order: QuantOrder, report: Report) -> Conversion:
        """The forms of all matrices that the family leaves to a recipe follow from their sensitivities."""
        require(order.form.mode == "affine", "mode", f"must be affine with the recipe {MEASURED}")
        folder = Path(order.source)
        plain = open_conversion(folder, order.use, order.form)
        matrices = [
            sensitivity.Matrix(step.path, tuple(step.source.shape), step.cast.size)
            for step in plain.steps
            if step.source is not None and step.form == order.form
        ]
        kept = None if self._memory_dir is None else self._memory_dir / "sensitivities"
        rows = self._rows(folder, self._texts[0])
        paths = [matrix.path for matrix in matrices]
        named = json.dumps([digest_folder(folder, self._memory_dir).hex(), paths, rows])
        key = hashlib.sha256(named.encode()).hexdigest()
        found = sensitivity.recall(kept, key)
        if found is None:
            found = sensitivity.measure(
                *(folder, order.use, matrices, rows),
                lambda done, total: report(QuantProgress(QuantPhase.MEASURING, done, total)),
            )
            sensitivity.remember(kept, key, found)
        most_bytes = uniform = sum(matrix.bytes_in(order.form) for matrix in matrices)
        if order.most_bytes is not None:
            beside = [one.num_bytes for tensors in self._beside(order, plain).values() for one in tensors.values()]
            most_bytes = order.most_bytes + uniform - sum(output.num_bytes for output in plain.outputs) - sum(beside)
        forms = assigned(found.parts(matrices), most_bytes)
        return open_conversion(
            *(folder, order.use, order.form),
            lambda _paths, _num_layers: lambda path: forms.get(path, order.form),
            found.moments,
        )

    def _planned(self, order: QuantOrder, conversion: Conversion) -> QuantPlan:
        beside = [stored for tensors in self._beside(order, conversion).values() for stored in tensors.items()]
        out = Path(order.out)
        near = next(folder for folder in (out, *out.parents) if folder.exists())
        return QuantPlan(
            tuple(step.planned for step in conversion.steps),
            len(shards_of(conversion.outputs)),
            tuple(sorted(name for name, _ in beside)),
            sum(stored.num_bytes for _, stored in beside),
            shutil.disk_usage(near).free,
            _pass_bytes(conversion) if order.checks or order.recipe == MEASURED else 0,
        )

    def _beside(self, order: QuantOrder, conversion: Conversion) -> dict[str, Any]:
        num_layers = number(conversion.config, "num_hidden_layers")
        return tensors_beside(Path(order.source), num_layers, _holds_tower(conversion))

    # ---- the copy --------------------------------------------------------------------------------------------------

    def _write(self, conversion: Conversion, work: Path, report: Report) -> dict[str, str]:
        done, total = 0, sum(output.num_bytes for output in conversion.outputs)

        def wrote(count: int) -> None:
            nonlocal done
            done += count
            report(QuantProgress(QuantPhase.WRITING, done, total))

        writer = ShardWriter(work, shards_of(conversion.outputs), wrote)
        try:
            for step in conversion.steps:
                writer.write(step)
        finally:
            writer.close()
        return writer.weight_map

    def _compared(
        self, order: QuantOrder, work: Path, conversion: Conversion, report: Report
    ) -> tuple[QuantQuality | None, str]:
        """The written copy against its source; each layer of both is read once."""
        folder = Path(order.source)
        if order.use.is_pooled:
            return None, "vectors and scores are not compared"
        network, _ = open_network(folder, order.use)
        cast_network(network, "auto")
        written = load_weights(work)
        forms = {step.path: step.form for step in conversion.steps if step.form is not None}

        def value(path: str, _: mx.array) -> mx.array:
            names = (f"{path}.{name}" for name in ("weight", "scales", "biases"))
            return expanded([written[name] for name in names if name in written], forms[path])

        layers = Layerwise(network, (Variant(tuple(forms), value),))
        tokens = mx.stack([token_array(row) for row in self._rows(folder, self._texts[1])])
        try:
            layers.run(tokens, lambda done: report(QuantProgress(QuantPhase.CHECKING, done, len(layers.layers))))
            (found,) = qualities(layers, tokens)
        except Unmeasurable as error:
            return None, f"not compared: {error.message}"
        return QuantQuality(**asdict(found)), ""

    def _rows(self, folder: Path, texts: Sequence[str]) -> list[list[int]]:
        rows = [list(self._encode(folder, text))[:ROW_TOKENS] for text in texts]
        length = min(map(len, rows))
        if length < 2:
            raise ModelLoadFailed(f"{folder}: its tokenizer makes no tokens of a text")
        return [row[:length] for row in rows]


def _pass_bytes(conversion: Conversion) -> int:
    """A layer is held twice, for a variant of one of its matrices is put together beside it."""
    layers, outside = dict[str, int](), 0
    for step in conversion.steps:
        num_bytes = 0 if step.source is None else step.source.nbytes
        if found := _LAYER.match(step.path):
            layers[found[0]] = layers.get(found[0], 0) + num_bytes
        else:
            outside += num_bytes
    return 2 * max(layers.values(), default=0) + 2 * outside


def _recipe(order: QuantOrder) -> FindRecipe | None:
    if not order.recipe:
        return None
    if order.recipe in MIXED:
        return lambda paths, num_layers: mixed(order.recipe, order.form.group, paths, num_layers)
    return lambda _paths, _num_layers: by_rules(order.rules, order.form)


def _check(folder: Path, config: Mapping[str, Any], order: QuantOrder) -> None:
    """Refuses by name what cannot be quantised. Raises ModelLoadFailed."""
    text = cast("Mapping[str, Any]", config.get("text_config") or {})
    known = next((one[key] for one in (config, text) for key in _QUANTISED if one.get(key)), None)
    if known is None and (folder / "hf_quant_config.json").is_file():
        known = {"quant_method": "modelopt"}
    if known is not None:
        method = cast("Mapping[str, Any]", known).get("quant_method") if isinstance(known, Mapping) else None
        raise ModelLoadFailed(
            f"{folder} is quantised already ({method or 'mlx'}): quantise a source in bfloat16, float16 or float32"
        )
    if order.use.is_encoder:
        raise ModelLoadFailed(f"{folder} is an encoder, which is small and computed in full precision")
    if narrow := next((name for name, one in network_tensors(folder).items() if not _is_wide(one)), ""):
        raise ModelLoadFailed(f"{folder} has weights of 8 bits ({narrow}): quantise a source in 16 bits")


def _is_wide(tensor: StoredTensor) -> bool:
    return tensor.is_floating or not tensor.dtype.startswith(("F8", "I8", "U8", "F4", "F6")) or len(tensor.shape) < 2


def _holds_tower(conversion: Conversion) -> bool:
    """True if the network holds the tower, as some of mlx-lm's do."""
    return any("vision_tower." in output.name for output in conversion.outputs)


def _sync_files(folder: Path) -> None:
    """Syncs every file of a folder that was copied there."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    for path in (*sorted(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync_folder(path)
