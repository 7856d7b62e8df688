"""The backends: the engine, models and tokenizers that belong together, chosen by one setting.

Each backend is imported when it is chosen, so that the toy one does not import MLX.
"""

import os
import stat
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import gettempdir, mkdtemp
from typing import TYPE_CHECKING

from adapters.quantise_process.process import QuantiserProcess
from adapters.system.backup import exclude_from_backup
from adapters.system.blas import BlasReport, load_blas
from adapters.system.machine import SystemMemory
from application.ports.compute import ComputeEngine, MemoryProbe
from application.ports.model_repository import ModelCheck, ModelPlanner, ModelRepository
from application.ports.quantiser import Quantiser
from application.ports.tokenizer import TokenizerLoader
from application.ports.vision import ImageProcessorLoader
from application.services.faults import described
from application.services.prefix.store_tier import Upload
from application.services.text_side.models.model_finder import accept_any_model
from application.settings import Settings
from domain.errors import ServerUnavailable
from domain.ids import ModelId
from domain.models.capability import Capability
from domain.models.model_card import LoadOptions, ModelSource
from domain.models.model_files import ENCODERS
from domain.scheduling.memory_plan import PlannedModel
from interfaces.composition.engine_entry import IMAGE_CHILD, QUANTISE_CHILD

if TYPE_CHECKING:
    from adapters.tokenizers.loader import HfTokenizerLoader

_NUM_ATTENTION_PLANS = 192

STUCK_AFTER_GPU_S = 300.0
"""A chunk of 2048 tokens at a context of 100,000 takes a small Mac some 70 s with 8B parameters; compiling kernels the
first time takes a minute or less."""

STUCK_AFTER_CPU_S = 900.0
"""A chunk of 512 tokens there takes some 350 s on two cores. Used as well where the device is not known yet."""


def _no_plan(source: ModelSource, _options: LoadOptions) -> PlannedModel:
    raise ValueError(f"the memory of {source.id} cannot be estimated: it is a toy model")


@dataclass(frozen=True, slots=True)
class Backend:
    """The compute side. `engine_factory` runs on the compute thread. `default_grid`: prefill grid in tokens when none
    is set. `max_last_chunk`: as in StepLimits. `upload`: moves state from the store to the device, called by its
    readers or (`uploads_on_compute_thread`) between steps; None where it is not needed. `memory`: the probe of the
    device's memory; `host_memory`: of the host's where that is another one. `check`: checks a model before others are
    unloaded for it. `plan`: estimates a model before it is loaded. `stuck_after_s`: longer than any step of the device
    takes. `images`: the image processors of the text side; None where no model sees.
    """

    engine_factory: Callable[[], ComputeEngine]
    repository: ModelRepository
    tokenizers: TokenizerLoader
    default_grid: int
    max_last_chunk: int = 32
    upload: Upload | None = None
    uploads_on_compute_thread: bool = False
    memory: MemoryProbe = field(default_factory=SystemMemory)
    host_memory: MemoryProbe | None = None
    stuck_after_s: float = STUCK_AFTER_CPU_S
    check: ModelCheck = accept_any_model
    plan: ModelPlanner = _no_plan
    images: ImageProcessorLoader | None = None


@dataclass(frozen=True, slots=True)
class Models:
    """The text side's part of a backend that computes in another process."""

    repository: ModelRepository
    tokenizers: TokenizerLoader
    check: ModelCheck
    images: ImageProcessorLoader | None = None


def models_for(settings: Settings, check: ModelCheck) -> Models:
    """The models of the settings. `check`: of the process that has the backend. Imports no compute library."""
    return Models(model_repository(settings), tokenizers_of(settings), check, image_processors(settings))


def image_processors(settings: Settings) -> ImageProcessorLoader | None:
    """The image processors of the text side, which imports no image library; None where no model sees."""
    if settings.engine.backend == "fake":
        return None
    from adapters.image_process.workers import ImageWorkers
    from adapters.mlx.vlm.library import missing

    return None if missing() else ImageWorkers(IMAGE_CHILD)


def tokenizers_of(settings: Settings) -> TokenizerLoader:
    if settings.engine.backend == "fake":
        from adapters.fake.tokenizer import FakeTokenizers

        return FakeTokenizers()
    return _real_tokenizers(settings)


def _real_tokenizers(settings: Settings) -> "HfTokenizerLoader":
    from adapters.tokenizers.loader import HfTokenizerLoader

    return HfTokenizerLoader(settings.parser_of)


def choose_backend(settings: Settings) -> Backend:
    """The backend that the settings name. Raises ServerUnavailable."""
    with importing():
        return {"fake": fake_backend, "mlx": mlx_backend}[settings.engine.backend](settings)


@contextmanager
def importing() -> Generator[None]:
    """A context for imports of the backend. Raises ServerUnavailable with the reason if they fail."""
    try:
        yield
    except Exception as error:
        raise ServerUnavailable(f"the engine cannot be made: {described(error)}") from error


def fake_backend(settings: Settings) -> Backend:
    """The deterministic toy engine: the whole service without MLX."""
    from adapters.fake.engine import FakeEngine, plan_toy
    from adapters.fake.tokenizer import FakeTokenizers

    return Backend(
        FakeEngine,
        model_repository(settings),
        FakeTokenizers(),
        default_grid=settings.engine.block_size,
        plan=plan_toy,
    )


def mlx_backend(settings: Settings) -> Backend:
    """Models on MLX."""
    from adapters.system.heap import SMALL_BYTES, return_freed, trim_heap

    blas = prepare_mlx()
    memory = settings.engine.memory
    if memory is not None and memory.num_bytes is not None and memory.num_bytes < SMALL_BYTES:
        return_freed()
    from adapters.mlx.engine import MlxEngine
    from adapters.mlx.loading.plan import check_source, plan_model
    from adapters.mlx.runtime.device import MlxMemory, has_cuda, on_cpu, preferred_grid, preferred_last_chunk
    from adapters.mlx.state.payload import upload
    from adapters.mlx.vlm.library import missing

    def engine() -> MlxEngine:
        exclude_from_backup(cache_dir())
        return MlxEngine(cache_dir(), blas.identity, trim_heap, not missing(), settings.engine.wired_bytes)

    tokenizers = _real_tokenizers(settings)
    return Backend(
        engine,
        model_repository(settings),
        tokenizers,
        default_grid=preferred_grid(),
        max_last_chunk=preferred_last_chunk(),
        upload=None if on_cpu() else upload,
        uploads_on_compute_thread=has_cuda(),
        memory=MlxMemory(SystemMemory()),
        host_memory=SystemMemory() if has_cuda() else None,
        stuck_after_s=STUCK_AFTER_CPU_S if on_cpu() else STUCK_AFTER_GPU_S,
        check=check_source,
        plan=plan_model,
        images=image_processors(settings),
    )


def import_backend(name: str) -> tuple[object, ...]:
    """Imports the modules of `choose_backend`, which takes seconds, and queries the device. Main thread; raises the
    errors of both."""
    if name != "mlx":
        return ()
    prepare_mlx()
    from adapters.mlx import engine
    from adapters.mlx.runtime import device

    device.preferred_grid()
    return engine, device


def prepare_mlx() -> BlasReport:
    """Prepares the process for the first import of MLX, which binds to the BLAS that is loaded then. Idempotent."""
    from adapters.system.heap import bound_arenas, keep_freed

    bound_arenas()
    keep_freed()
    _keep_kernels_private()
    # cuDNN makes a plan (40 to 90 ms, 1.6 MB) for every length that a chunk or a step attends to. Chunks of a prompt of
    # 200,000 tokens have a hundred, which the next such prompt needs as well.
    os.environ.setdefault("MLX_CUDA_SDPA_CACHE_SIZE", str(_NUM_ATTENTION_PLANS))
    # MLX's caches of plans and graphs count what they have ever missed, and from twice their size on every other miss
    # is an error: a server would answer its first four hundred lengths of prompts, and no new one after that.
    os.environ.setdefault("MLX_ENABLE_CACHE_THRASHING_CHECK", "0")
    if sys.platform == "darwin":  # macOS ends work of a GPU sooner without it
        os.environ.setdefault("AGX_RELAX_CDM_CTXSTORE_TIMEOUT", "1")
    return load_blas()


def _keep_kernels_private() -> None:
    """MLX compiles kernels at run time and loads them from below TMPDIR: in a shared folder another user
    could plant one. If TMPDIR is not private, it is set to a private folder for this process and its children: in the
    cache folder, where compiled kernels survive a restart, or a new one if that cannot be used. Python's own temporary
    files stay in their folder."""
    shared = gettempdir()  # which caches its answer
    if "TMPDIR" in os.environ and _is_private(Path(os.environ["TMPDIR"])):
        return
    folder = cache_dir() / "kernels"
    for private in (folder.parent, folder):
        with suppress(OSError):
            private.mkdir(mode=0o700, parents=True, exist_ok=True)
            private.chmod(0o700)
    if not (_is_private(folder.parent) and _is_private(folder)):
        folder = Path(mkdtemp(prefix="cairn-kernels-", dir=shared))
    os.environ["TMPDIR"] = str(folder)


def _is_private(folder: Path) -> bool:
    """True for a folder of this user that no other user can read or write."""
    try:
        found = folder.stat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o077


def model_repository(settings: Settings) -> ModelRepository:
    """The models of the chosen backend. Needs no engine, so that listing models never starts one."""
    if settings.engine.backend == "fake":
        from adapters.fake.engine import FakeModels

        return FakeModels()
    from adapters.huggingface.repository import Adapted, AdaptedModels, HuggingFaceRepository
    from adapters.mlx.vlm.library import missing

    adapted = {
        ModelId(name): Adapted(ModelId(table.base or name), table.adapter)
        for name, table in settings.models.items()
        if table.adapter
    }
    named = _named(settings)
    repository = HuggingFaceRepository(
        settings.model.dirs,
        paths=[name for name in named if "/" in name and Path(name).expanduser().is_dir()],
        allow_download=settings.model.download,
        hub_ids=None if settings.serves_hub_cache else named,
        can_load=lambda model_type: bool(model_type) and not why_type_is_unserved(settings, model_type),
        tasks={ModelId(name): Capability(table.task) for name, table in settings.models.items() if table.task},
        blind=missing,
    )
    return AdaptedModels(repository, adapted) if adapted else repository


def _named(settings: Settings) -> Sequence[ModelId]:
    """The models that the settings name."""
    model, tables = settings.model, settings.models
    bases = [table.base or name for name, table in tables.items() if table.adapter]
    drafts = [model.draft, *(table.draft for table in tables.values())]
    return [ModelId(name) for name in dict.fromkeys((model.default, *model.allowed, *bases, *filter(None, drafts)))]


def why_type_is_unserved(settings: Settings, model_type: str) -> str:
    """Empty if the backend knows a config's model_type, or that is unknown; otherwise the reason, and what to do."""
    if settings.engine.backend == "fake" or not model_type:
        return ""
    from adapters.mlx.vlm.families import why_unserved
    from adapters.mlx.vlm.library import missing

    return missing() if model_type in ENCODERS else why_unserved(model_type)


def why_hub_model_is_unserved(settings: Settings) -> Callable[[ModelId, str], str]:
    """The function that says, by id and model_type, why a model of the hub would not be served here, and what to do;
    empty if it would be."""
    named = frozenset(_named(settings))

    def why(id: ModelId, model_type: str) -> str:
        if not settings.model.download:
            return "downloads are switched off: set model.download = true"
        if not settings.serves_hub_cache and id not in named:
            return 'this server serves named models only: add it to model.allowed, or set model.hub_cache = "on"'
        return why_type_is_unserved(settings, model_type)

    return why


def quantiser() -> Quantiser:
    """The quantiser in a process of its own."""
    return QuantiserProcess(QUANTISE_CHILD, str(cache_dir()))


def server_quantiser(settings: Settings) -> Quantiser | None:
    """The quantiser of a server; None where its models are toys."""
    return None if settings.engine.backend == "fake" else quantiser()


def cache_dir() -> Path:
    """The cache folder: `$XDG_CACHE_HOME/cairn`, by default `~/.cache/cairn`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cairn"


def device_and_blas(settings: Settings) -> tuple[str, BlasReport | None]:
    """The name of the device and the BLAS of its float32 products; no BLAS for the toy backend. Imports MLX."""
    if settings.engine.backend == "fake":
        return "toy engine", None
    report = load_blas()
    from adapters.mlx.runtime.device import describe_device

    return describe_device(), report


def describe_computing(settings: Settings) -> str:
    """One line: `cpu, OpenBLAS 0.3.21, 1 thread (/usr/lib/...)`. Raises ServerUnavailable."""
    with importing():
        device, blas = device_and_blas(settings)
    return f"{device}, {blas.describe()}" if blas and blas.is_needed else device
