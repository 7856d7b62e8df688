"""The memory limits of the computing process, and the plan of a model's memory."""

from pathlib import Path

from application.settings import Settings
from domain.byte_size import ByteSize, format_bytes
from domain.errors import ModelNotFound
from domain.ids import ModelId
from domain.memory.kv_bits import KVBits
from domain.memory.ledger import MemoryLimits
from domain.models.model_card import LoadOptions, ModelSource
from domain.scheduling.memory_plan import MemoryPlan, PlannedModel
from interfaces.composition.backends import Backend, choose_backend

AUTO_SHARE = 0.9
"""The share of free memory that is used by default; the rest is for growth of other processes and errors of
estimates."""


def memory_limits(setting: ByteSize | None, backend: Backend) -> MemoryLimits | None:
    """The limits that are set (a share of all memory, or a size of at most that) or follow from the machine; None if
    nothing is set and memory cannot be read."""
    reading = backend.memory.read()
    total = reading.total_bytes
    if setting is not None and setting.num_bytes is not None:
        return MemoryLimits.of(setting.num_bytes if total is None else min(setting.num_bytes, total))
    if total is None:
        return None
    if setting is not None:
        return MemoryLimits.of(setting.resolve(total))
    free = total if reading.available_bytes is None else reading.available_bytes + (reading.held_bytes or 0)
    return MemoryLimits.of(int(min(total, free) * AUTO_SHARE))


def limits_here(settings: Settings) -> MemoryLimits | None:
    """The limits of a server with these settings that is started now."""
    return memory_limits(settings.engine.memory, choose_backend(settings))


def describe_limits(limits: MemoryLimits | None) -> str:
    """The limits in words: `16 GiB of memory; evicts above 14.1 GiB, admits nothing beyond 15.2 GiB`."""
    if limits is None:
        return "memory without a limit"
    total, high, hard = map(format_bytes, (limits.total_bytes, limits.high_bytes, limits.hard_bytes))
    return f"{total} of memory; evicts above {high}, admits nothing beyond {hard}"


def plan_memory(
    settings: Settings, backend: Backend, memory: ByteSize | None, context: int | None, batch: int
) -> tuple[PlannedModel, MemoryPlan]:
    """The plan for the default model. `memory`: of another machine; a share, or None, is of this one. `context`: None
    for the model's own. Raises ModelNotFound, ModelLoadFailed."""
    id = ModelId(settings.model.default)
    source = backend.repository.find(id) or _bare_folder(id)
    if source is None:
        raise ModelNotFound(f"{id} was not found: name a folder with a config.json, or see `cairn models`")
    kv_bits = KVBits.parse(settings.model.kv_bits, settings.model.kv_group_size, "model.kv_bits")
    model = backend.plan(source, LoadOptions(settings.model.dtype, kv_bits=kv_bits))
    length = min(context or model.context_length, model.context_length)
    plan = MemoryPlan(
        shape=model.memory,
        context=length,
        batch=batch,
        chunk=max(
            settings.engine.prefill_grid or backend.default_grid, 0 if model.layout.layers else length
        ),  # an encoder's
        limits=limits_for(settings, backend, memory),
    )
    return model, plan


def _bare_folder(id: ModelId) -> ModelSource | None:
    """A folder with a configuration but no weights, which is enough to plan for; None for any other."""
    folder = Path(id).expanduser()
    return ModelSource(id, str(folder)) if "/" in id and (folder / "config.json").is_file() else None


def limits_for(settings: Settings, backend: Backend, memory: ByteSize | None) -> MemoryLimits | None:
    """The limits of a server that is started now. `memory`: as in `plan_memory`."""
    if memory is not None and memory.num_bytes is not None:
        return MemoryLimits.of(memory.num_bytes)
    return memory_limits(memory or settings.engine.memory, backend)
