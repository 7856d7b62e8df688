"""Where an engine's process begins. Imports next to nothing: it is launched before anything else is imported."""

from adapters.engine_process.child import ChildProcess

CHILD = "interfaces.cli.server.engine_child"
"""Run by its name, never imported."""


def engine_child(backend: str) -> ChildProcess:
    """Not started yet. `backend`: `engine.backend`, which it begins to import before it is told its settings."""
    return ChildProcess(CHILD, backend)
