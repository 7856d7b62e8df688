"""Which kind of engine `cairn serve` takes here. Imports next to nothing: it is asked before anything else is."""

import platform
import sys

from adapters.system.gpu import has_cuda
from application.settings import Settings
from domain.engine_kind import ComputesOn, EngineKind, engine_kind


def computes_on(settings: Settings) -> ComputesOn:
    """As far as can be told without MLX."""
    if settings.engine.backend == "fake":
        return ComputesOn.TOY
    if sys.platform == "darwin":
        return ComputesOn.METAL if platform.machine() == "arm64" else ComputesOn.CPU
    return ComputesOn.CUDA if has_cuda() else ComputesOn.CPU


def server_kind(settings: Settings) -> EngineKind:
    """As set, or as `domain/engine_kind` has it for this machine."""
    return engine_kind(settings.engine.kind, computes_on(settings))


__all__ = ("computes_on", "server_kind")
