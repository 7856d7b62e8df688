"""The plan of a model's memory that the settings ask for."""

from pathlib import Path

from application.settings import Settings
from domain.byte_size import ByteSize
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.memory.ledger import MemoryLimits
from domain.models.model_card import LoadOptions, ModelSource
from domain.scheduling.memory_plan import MemoryPlan, PlannedModel
from interfaces.composition.backends import Backend
from interfaces.composition.memory import limits_of


def plan_memory(
    settings: Settings, backend: Backend, memory: ByteSize | None, context: int | None, batch: int
) -> tuple[PlannedModel, MemoryPlan]:
    """The default model of the settings. `memory`: of another machine; a share, and None, are of this one. `context`
    None is the model's own. Raises ModelNotFound, ModelLoadFailed."""
    id = ModelId(settings.model.default)
    source = backend.repository.find(id) or _bare_folder(id)
    if source is None:
        raise ModelNotFound(f"{id} is not here: name a folder with a config.json, or see `cairn models`")
    model = backend.plan(source, LoadOptions(settings.model.dtype))
    plan = MemoryPlan(
        shape=model.memory,
        context=min(context or model.context_length, model.context_length),
        batch=batch,
        chunk=settings.engine.prefill_grid or backend.default_grid,
        limits=_limits(settings, backend, memory),
    )
    return model, plan


def _bare_folder(id: ModelId) -> ModelSource | None:
    """A folder with a configuration and nothing to load: no model of a repository's, and enough to plan for."""
    folder = Path(id).expanduser()
    return ModelSource(id, str(folder)) if "/" in id and (folder / "config.json").is_file() else None


def _limits(settings: Settings, backend: Backend, memory: ByteSize | None) -> MemoryLimits | None:
    if memory is not None and memory.num_bytes is not None:
        return MemoryLimits.of(memory.num_bytes)
    return limits_of(memory or settings.engine.memory, backend.memory.read())
