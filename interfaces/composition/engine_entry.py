"""Where an engine's process begins. Imports next to nothing: it is launched before anything else is imported."""

from adapters.engine_process.child import ChildProcess

CHILD = "interfaces.cli.engine_child"
"""Run by its name, never imported."""


def engine_child() -> ChildProcess:
    """Not started yet."""
    return ChildProcess(CHILD)


__all__ = ("CHILD", "engine_child")
