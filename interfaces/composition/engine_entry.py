"""The launch of an engine's process. Imports almost nothing, because it runs before anything else is imported."""

from adapters.engine_process.child import ChildProcess

CHILD = "interfaces.cli.server.engine_child"
"""The module of the child; run by name, never imported."""


def engine_child(backend: str) -> ChildProcess:
    """A child that is not started yet. `backend`: `engine.backend`, which it imports before its settings arrive."""
    return ChildProcess(CHILD, backend)
