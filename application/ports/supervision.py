"""What watches over the process, from inside and from outside, and what can be told of it when it hangs.

Nothing here raises: whoever watches must not fall over what is watched.
"""

from typing import Protocol


class Supervisor(Protocol):
    """Who started the process and may start it again. Any thread. What is `stopping` does not become `ready`."""

    def ready(self) -> None:
        """What was asked for is served."""
        ...

    def moving(self) -> None:
        """Nothing is stuck. Told every second or so; a supervisor that misses it for long enough restarts the
        process."""
        ...

    def stopping(self) -> None:
        """It was asked to end, and is about to."""
        ...


class ThreadStacks(Protocol):
    """Where the threads of the engine are now; of any thread, without stopping one."""

    def read(self) -> str:
        """Lines of Python by thread, those of idle workers left out; no value of any variable. Bounded in length."""
        ...


class NoSupervisor:
    """A Supervisor for a process that nobody supervises."""

    def ready(self) -> None:
        return

    def moving(self) -> None:
        return

    def stopping(self) -> None:
        return


__all__ = ("NoSupervisor", "Supervisor", "ThreadStacks")
