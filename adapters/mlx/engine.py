"""MLX as a ComputeEngine: loads models on the compute thread and ends the backend when the thread does."""

import gc
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import mlx.core as mx

from adapters.mlx.cuda.attention import CudaAttention
from adapters.mlx.loading.assembly import assemble
from adapters.mlx.loading.drafters import check_vocabularies
from adapters.mlx.loading.encoder import assemble_encoder
from adapters.mlx.loading.network import load_folder
from adapters.mlx.loading.probe import check_hidden
from adapters.mlx.loading.vision import load_vision
from adapters.mlx.loading.weights_digest import Digests, digest_model
from adapters.mlx.memory import MeasuredFile, highest_bytes
from adapters.mlx.model import MlxModel
from adapters.mlx.runtime.arrays import clear_cache, finish, trial
from adapters.mlx.runtime.device import has_cuda, on_cpu, spare_bytes, working_set_bytes
from adapters.mlx.runtime.mlx_lm import mlx_lm_module
from adapters.mlx.runtime.replaced import replace_attention
from application.ports.compute import LoadedModel, LoadReport, LoadSteps, unreported
from application.services.lane import Lane
from domain.errors import ModelLoadFailed
from domain.models.capability import Capability
from domain.models.model_card import LoadOptions, ModelSource

LoadAttempt: TypeAlias = "Generator[Future[Any] | None, None, MlxModel | str]"
"""The pieces of a load, which return the model or why there is none."""


class MlxEngine:
    """A ComputeEngine of MlxModels; see the port for the contract. All but `memory` on the thread of the first load.

    MLX streams are per thread: a lazy array of this thread cannot be evaluated on another one, and a thread that ran
    operations must call `close` before it ends, or the process may abort at exit.
    """

    def __init__(
        self,
        memory_dir: Path | None = None,
        blas: str = "",
        trim_heap: Callable[[], None] = lambda: None,
        sees: bool = False,
        wired_bytes: int = 0,
    ) -> None:
        """`memory_dir`: the folder for remembered weight digests, peaks and costs; None for none. `blas`: identity of
        the BLAS that MLX uses, empty for its own. `trim_heap`: returns freed memory of the process's allocator,
        which holds a CPU's buffers and the bytes of stored records, to the system. `sees`: the towers of models
        that see are loaded. `wired_bytes`: memory that Metal may keep from being paged out; 0: what the system
        decides."""
        self._sees = sees
        self._wired_bytes = wired_bytes
        self._trim_heap = trim_heap
        self._memory_dir = memory_dir
        self._blas = blas
        self._reading = Lane("weights", 1)
        self._measured = None if memory_dir is None else MeasuredFile(memory_dir, self._reading)
        self._is_prepared = False
        self._models: list[MlxModel] = []

    def load(self, source: ModelSource, options: LoadOptions, report: LoadReport = unreported) -> LoadSteps:
        self._prepare()
        found = yield from _tried(self._try_load(source, options, report))
        if isinstance(found, MlxModel):
            self._models.append(found)
            _settle_objects()
            return found
        # No frame of the attempt is left that could hold a weight, and the error holds no traceback.
        gc.collect()
        clear_cache()
        raise ModelLoadFailed(found)

    def _try_load(self, source: ModelSource, options: LoadOptions, report: LoadReport) -> LoadAttempt:
        """Returns the model, or the error message: an exception's traceback would hold every weight that was read."""
        folder, adapter = Path(source.path), Path(source.adapter) if source.adapter else None
        try:
            draft = Path(options.draft) if options.draft else None
            read = self._reading.submit(partial(_read_files, folder, adapter, draft, self._memory_dir, report))
            yield read  # the first read of all files is limited by the disk
            network, facts = yield from load_folder(folder, options, read.result(), adapter, source.use, report)
            if source.use.is_encoder:
                return (yield from assemble_encoder(network, source, facts, self._blas))
            if source.use.is_pooled:
                check_hidden(network)
            vision = None
            if self._sees and Capability.SEE in source.use.capabilities:
                vision = yield from load_vision(folder, facts.config, network, options.dtype)
            return (
                yield from assemble(
                    network,
                    source.id,
                    facts,
                    blas=self._blas,
                    measured=self._measured,
                    room_bytes=options.room_bytes,
                    vision=vision,
                    report=report,
                )
            )
        except ModelLoadFailed as error:
            return error.message
        except Exception as error:
            return f"{source.path} could not be loaded: {str(error) or type(error).__name__}"

    def unload(self, model: LoadedModel) -> None:
        self._models = [held for held in self._models if held is not model]
        cast(MlxModel, model).release()
        gc.unfreeze()
        _settle_objects()  # modules and their parameters are cyclic garbage
        clear_cache()

    def memory(self) -> Mapping[str, int]:
        return {
            "active": mx.get_active_memory(),
            "peak": highest_bytes(),
            "cache": mx.get_cache_memory(),
        }

    def clear_cache(self) -> None:
        is_idle = not any(model.open_ids() for model in self._models)
        if is_idle:
            # Frees the traceback of an error, for example. The collector does not run by itself while nothing runs.
            gc.collect()
        for model in self._models:
            model.give_back()
        clear_cache()
        if on_cpu() or is_idle:
            self._trim_heap()

    def finish(self) -> None:
        finish()

    def close(self) -> None:
        self._reading.close()
        try:
            finish()
        finally:
            clear_cache()
            mx.clear_streams()

    def _prepare(self) -> None:
        """Sets MLX up, once, before the first array."""
        if self._is_prepared:
            return
        self._is_prepared = True
        _bound_memory(self._wired_bytes)
        if has_cuda():
            replace_attention(CudaAttention, CudaAttention)


def _tried(pieces: LoadAttempt) -> LoadAttempt:
    """Runs each piece of a load as a trial: a model that this device cannot compute fails alone, and a piece that ended
    is verified."""
    while True:
        try:
            with trial():
                awaited = next(pieces)
        except StopIteration as end:
            return cast(MlxModel | str, end.value)
        yield awaited


def _bound_memory(wired_bytes: int) -> None:
    """Limits freed buffers, of which MLX would keep 30 GB beside 32 streams on a CUDA device of 80 GB. Metal: wires
    memory only where that is asked for, since each wired buffer that is freed changes the set of resident ones, and
    enough of that ends macOS in a kernel panic."""
    if wired_bytes and (most := working_set_bytes()):
        mx.set_wired_limit(min(wired_bytes, most))
    if spare := spare_bytes():
        mx.set_cache_limit(spare)


def _read_files(
    folder: Path, adapter: Path | None, draft: Path | None, memory_dir: Path | None, report: LoadReport
) -> Digests:
    """Hashes the files, compares the tokens of a draft model, and for an adapter imports mlx-lm's trainer: slow work
    that needs no device."""
    if adapter is not None:
        mlx_lm_module("tuner.utils")
    if draft is not None:
        check_vocabularies(folder, draft)
    return digest_model(folder, adapter, draft, memory_dir, report)


def _settle_objects() -> None:
    """Collects garbage, and excludes the rest from later collections until a model is unloaded: traversing the modules
    of a few libraries stops all threads for 60 ms, in the middle of any request."""
    gc.collect()
    gc.freeze()
