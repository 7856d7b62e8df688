"""The supervisor of the process, and the stacks of its threads when it hangs.

Nothing here raises: a watch must not fail with what it watches.
"""

from typing import Protocol


class ServiceManager(Protocol):
    """The program that started the process and may start it again. Any thread. A process that is `stopping` does not
    become `ready`."""

    def ready(self) -> None:
        """Reports that the default model is served."""
        ...

    def moving(self) -> None:
        """Reports that nothing is stuck. Called about once a second; a supervisor that misses it for long enough
        restarts the process."""
        ...

    def stopping(self) -> None:
        """Reports that the process is shutting down."""
        ...


class ThreadStacks(Protocol):
    """The stacks of the engine's threads, read without stopping them. Any thread."""

    def read(self) -> str:
        """Returns the stack of each thread as lines of Python, without idle workers and without values of variables.
        Bounded in length."""
        ...


class NoServiceManager:
    """A ServiceManager for a process without one."""

    def ready(self) -> None:
        return

    def moving(self) -> None:
        return

    def stopping(self) -> None:
        return
