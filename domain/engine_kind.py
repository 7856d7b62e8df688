"""Whether a server's engine is a thread of it or a process of its own, and why: as set, or what is known to be better.

    on         auto      because
    CUDA       process   measured on an H100: 1.01 to 1.17 of the bare loop's rate, a thread 0.72 to 0.90
    CPU        thread    measured as fast, and 90 MB less (`bench/engine_kinds` compares them)
    Metal      thread    not measured: what is known to work stays
    a toy      thread    it computes nothing

What dies with an engine on a thread is the server: who wants that apart sets `process` anywhere.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

AUTO, THREAD, PROCESS = "auto", "thread", "process"
KINDS = (AUTO, THREAD, PROCESS)


class ComputesOn(Enum):
    CPU = "cpu"
    METAL = "metal"
    CUDA = "cuda"
    TOY = "toy"


@dataclass(frozen=True, slots=True)
class EngineKind:
    """`name`: THREAD or PROCESS. `why`: for people."""

    name: str
    why: str

    def __str__(self) -> str:
        place = "a process of its own" if self.name == PROCESS else "a thread of the server"
        return f"{place} ({self.why})"


_MEASURED: Mapping[ComputesOn, EngineKind] = {
    ComputesOn.CUDA: EngineKind(PROCESS, "auto: measured faster on NVIDIA GPUs"),
    ComputesOn.METAL: EngineKind(THREAD, "auto: a process of its own is not measured on Metal"),
    ComputesOn.CPU: EngineKind(THREAD, "auto: a process of its own is no faster on a CPU"),
    ComputesOn.TOY: EngineKind(THREAD, "auto: the toy engine computes nothing"),
}


def engine_kind(wanted: str, computes_on: ComputesOn) -> EngineKind:
    """`wanted`: one of KINDS."""
    return _MEASURED[computes_on] if wanted == AUTO else EngineKind(wanted, "as set")


def embedded_kind(wanted: str) -> EngineKind:
    """Of an engine in somebody else's program: nothing is started there that was not asked for."""
    return (
        EngineKind(THREAD, "auto: the server is part of another program")
        if wanted == AUTO
        else EngineKind(wanted, "as set")
    )


__all__ = ("AUTO", "KINDS", "PROCESS", "THREAD", "ComputesOn", "EngineKind", "embedded_kind", "engine_kind")
