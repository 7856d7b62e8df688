"""The way from a model's name to a model that may be loaded: located, checked, and not known to have failed recently.

Concurrent requests for one name share one search. Blocking work runs in `workers`.
"""

import asyncio
from dataclasses import dataclass

from application.live_settings import LiveSettings
from application.ports.clock import Clock
from application.ports.model_repository import DownloadProgress, ModelCheck, ModelPreview, ModelRepository
from application.ports.tokenizer import Tokenizer, TokenizerLoader
from application.ports.vision import ImageProcessor, ImageProcessorLoader
from application.services.lane import Lane
from application.services.text_side.models.load_failures import LoadFailures
from application.settings import ModelSettings, ModelTable
from domain.errors import DomainError, InvalidRequest, ModelExceedsMemory, ModelLoadFailed, ModelNotFound
from domain.ids import ModelId
from domain.memory.kv_bits import KVBits
from domain.models.capability import Capability
from domain.models.model_card import LoadOptions, ModelDescription, ModelSource
from domain.models.residency import Residence
from domain.printable import printable
from domain.request.repetition import RepetitionDetection
from domain.request.sampling import SamplingDefaults
from domain.speculation.drafter import Drafter, SpeculationMode

NUM_THREADS = 4
MAX_PENDING = 64
"""Searches and checks that may run or wait."""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model that is ready for requests. `reuse_note`: why its prompts are never reused; empty when they are.
    `options`: of its load. `advised`: the sampling that its own files advise (see `ModelPool.sampling`). `images`: None
    for a model that does not see."""

    source: ModelSource
    tokenizer: Tokenizer
    description: ModelDescription
    reuse_note: str
    options: LoadOptions = LoadOptions()
    advised: SamplingDefaults = SamplingDefaults()
    images: ImageProcessor | None = None
    repetition: RepetitionDetection = RepetitionDetection()


@dataclass(frozen=True, slots=True)
class FoundModel:
    """A model that may be loaded. `weight_bytes`: an estimate of its size in memory; `expert_bytes`: of the experts
    among them. `advised`, `images`: as in ServedModel."""

    source: ModelSource
    tokenizer: Tokenizer
    options: LoadOptions
    weight_bytes: int
    advised: SamplingDefaults
    images: ImageProcessor | None = None
    expert_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model's state in the pool. `idle_ttl_s`: the seconds without a lease after which it is unloaded; None for a
    model that is unloaded only to make room."""

    residence: Residence = Residence.ABSENT
    num_leases: int = 0
    is_pinned: bool = False
    idle_ttl_s: int | None = None


def accept_any_model(_source: ModelSource, _options: LoadOptions) -> ModelPreview:
    """A ModelCheck that accepts every model, for backends without files."""
    return ModelPreview()


class ModelFinder:
    """Event loop only."""

    def __init__(
        self,
        repository: ModelRepository,
        tokenizers: TokenizerLoader,
        live: LiveSettings,
        check: ModelCheck,
        clock: Clock,
        workers: Lane | None = None,
        images: ImageProcessorLoader | None = None,
    ) -> None:
        """`images`: None for a backend whose models do not see."""
        self._repository = repository
        self._tokenizers = tokenizers
        self._images = images
        self._live = live
        self._check = check
        self.workers = workers or Lane("model folder", NUM_THREADS, max_pending=MAX_PENDING)
        self._failures = LoadFailures(clock)
        self._finding: dict[ModelId, asyncio.Task[FoundModel]] = {}
        self._previews: dict[ModelId, tuple[ModelSource, ModelPreview]] = {}
        self.download: DownloadProgress | None = None

    def close(self) -> None:
        """Stops the workers, which are not waited for, and the processes that decode images."""
        self.workers.close()
        if self._images is not None:
            self._images.close()

    async def find(self, id: ModelId) -> FoundModel:
        """Returns a model by name. Concurrent callers share one search, which the cancellation of one of them does not
        end. Raises ModelNotFound, ModelLoadFailed, and InvalidRequest for a model of a kind that is not served."""
        task = self._finding.get(id)
        if task is None:
            task = asyncio.create_task(self._find(id))
            self._finding[id] = task
            task.add_done_callback(lambda done: self._end_finding(id, done))
        return await asyncio.shield(task)

    async def preview(self, source: ModelSource) -> ModelPreview:
        """Returns the sizes of a model, read once for the same files; without sizes if it cannot be loaded."""
        known = self._previews.get(source.id)
        if known is None or known[0] != source:
            try:
                options = await self.workers.run(self._options, source)
                preview = await self.workers.run(self._check, source, options)
            except DomainError:
                preview = ModelPreview()
            known = self._previews[source.id] = (source, preview)
        return known[1]

    def as_found(self, served: ServedModel) -> FoundModel:
        """As `find`, for a model that was served a moment ago."""
        weight_bytes = served.description.weight_bytes
        return FoundModel(served.source, served.tokenizer, served.options, weight_bytes, served.advised, served.images)

    def note_failure(self, source: ModelSource, error: Exception) -> None:
        """Remembers a failed load, except for lack of memory: that may be tried again at any time."""
        if isinstance(error, ModelLoadFailed) and not isinstance(error, ModelExceedsMemory):
            self._failures.note(source, error.message)

    def forget_failure(self, id: ModelId) -> None:
        """Forgets the failure of a model that was loaded."""
        self._failures.forget(id)

    def _end_finding(self, id: ModelId, task: asyncio.Task[FoundModel]) -> None:
        del self._finding[id]
        if not task.cancelled():
            task.exception()  # retrieved: the callers raise it, and none may be left

    async def _find(self, id: ModelId) -> FoundModel:
        source = await self.workers.run(self._locate, id)
        if source.use.refusal:
            raise InvalidRequest(f"{printable(id)} cannot be served: {source.use.refusal}", param="model")
        if (reason := self._failures.recall(source)) is not None:
            raise ModelLoadFailed(reason)
        return await self._prepare(source, await self.workers.run(self._options, source))

    async def _prepare(self, source: ModelSource, options: LoadOptions) -> FoundModel:
        """Checks the files and loads the tokenizer in parallel: both import large libraries at a server's start. An
        error in the files is raised first."""
        preview, tokenizer = await asyncio.gather(
            self.workers.run(self._check, source, options),
            self.workers.run(self._tokenizers.load, source),
            return_exceptions=True,
        )
        if isinstance(preview, BaseException):
            raise preview
        if isinstance(tokenizer, BaseException):
            raise tokenizer
        advised = preview.advised if self._settings.generation_config else SamplingDefaults()
        images: ImageProcessor | None = None
        if self._images is not None and Capability.SEE in source.use.capabilities:
            try:
                images = await self.workers.run(self._images.load, source)
            except ModelLoadFailed as error:
                source = source.without_images(error.message)
        return FoundModel(source, tokenizer, options, preview.weight_bytes, advised, images, preview.expert_bytes)

    def _options(self, source: ModelSource) -> LoadOptions:
        """Blocking. Raises ModelLoadFailed for a draft model that cannot be found."""
        table = self._live.table(source.id)
        mode = SpeculationMode(table.speculation or self._settings.speculation)
        if source.use.is_pooled:
            mode = SpeculationMode.OFF
        draft = self._draft_folder(source.id, table) if mode.allows(Drafter.DRAFT_MODEL) else ""
        context_length = table.context_length or self._settings.context_length
        kv_bits = None
        if not source.use.is_encoder:
            bits, group_size = table.kv_bits or self._settings.kv_bits, table.kv_group_size
            kv_bits = KVBits.parse(bits, group_size or self._settings.kv_group_size, "model.kv_bits")
        dtype = table.dtype or self._settings.dtype
        return LoadOptions(dtype, table.salt, mode, draft, context_length=context_length, kv_bits=kv_bits)

    def _draft_folder(self, id: ModelId, table: ModelTable) -> str:
        """Returns the folder of the model's draft model; empty for none. A model does not draft for itself."""
        draft = self._settings.draft if table.draft is None else table.draft
        if draft in ("", id):
            return ""
        setting = "model.draft" if table.draft is None else f'models."{id}".draft'
        try:
            source = self._repository.fetch(ModelId(draft), self._note_download)
        except (ModelNotFound, ModelLoadFailed) as error:
            raise ModelLoadFailed(f"{setting} must be a served model's name or a folder: {error.message}") from None
        if source.adapter:
            raise ModelLoadFailed(f"{setting} names {draft}, which has an adapter: name its base or another model")
        return source.path

    @property
    def _settings(self) -> ModelSettings:
        return self._live.now.model

    def _locate(self, id: ModelId) -> ModelSource:
        source = self._repository.find(id)
        if source is not None:
            return source
        if id != self._settings.default:  # a client must not be able to fill the disk with a name
            raise ModelNotFound(f"no model '{printable(id)}' here", param="model")
        return self._repository.fetch(id, self._note_download)

    def _note_download(self, progress: DownloadProgress) -> None:
        self.download = progress if progress.done_bytes < progress.total_bytes else None
