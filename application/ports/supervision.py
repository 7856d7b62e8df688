"""The supervisor of the process, and the stacks of its threads when it hangs.

Nothing here raises: a watch must not fail with what it watches.
"""

from typing import Protocol


class Supervisor(Protocol):
    """The program that started the process and may start it again. Any thread. A process that is `stopping` does not
    become `ready`."""

    def ready(self) -> None:
        """The default model is served."""
        ...

    def moving(self) -> None:
        """Nothing is stuck. Told every second or so; a supervisor that misses it for long enough restarts the
        process."""
        ...

    def stopping(self) -> None:
        """It was asked to end, and is about to."""
        ...


class ThreadStacks(Protocol):
    """The stacks of the engine's threads, read without stopping them. Any thread."""

    def read(self) -> str:
        """Lines of Python by thread, those of idle workers left out; no value of any variable. Bounded in length."""
        ...


class NoSupervisor:
    """A Supervisor for a process without one."""

    def ready(self) -> None:
        return

    def moving(self) -> None:
        return

    def stopping(self) -> None:
        return
