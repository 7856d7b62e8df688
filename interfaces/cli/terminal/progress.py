"""Progress of long work on stderr: a bar on a terminal, a line every LINE_EVERY_S anywhere else.

Nothing is written to stdout, and nothing at all where the output is for machines. Work that ends before the first line
is due writes none.
"""

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import typer

from domain.byte_size import format_bytes

if TYPE_CHECKING:
    from rich.progress import Progress, Task

LINE_EVERY_S = 10.0


def format_time(seconds: float) -> str:
    """Returns a duration in two units at most: `9s`, `2m 05s`, `3h 12m`, `5d 3h`."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600}h"


def format_latency(seconds: float) -> str:
    """A latency: `18.2ms`, `4.12s`, `2m 05s`."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f}ms"
    return f"{seconds:.2f}s" if seconds < 60 else format_time(seconds)


class Meter(Protocol):
    """A bar, lines, or nothing. Any thread, one at a time."""

    def advance(self, count: int) -> None:
        """Adds `count` bytes to the completed amount."""
        ...

    def reach(self, done: int, total: int | None, left_s: float | None = None) -> None:
        """Sets the completed amount and the total; None: unknown. The completed amount never decreases. `left_s`: the
        seconds that are left, None: by the meter's own estimate."""
        ...


class TaskMeter:
    """A Meter over a task of rich, which estimates rate and time. `write` gets a line when one is due; None: the bar
    of `tasks` is drawn instead."""

    def __init__(
        self,
        tasks: "Progress",
        what: str,
        total: int | None,
        write: Callable[[str], None] | None,
        now_s: Callable[[], float],
        amount: Callable[[int], str] = format_bytes,
    ) -> None:
        self._tasks = tasks
        self._what = what
        self._write = write
        self._now_s = now_s
        self._amount = amount
        self._written_s = now_s()
        tasks.add_task(what, total=total or None, detail="")
        self._task: Task = tasks.tasks[-1]

    def advance(self, count: int) -> None:
        self.reach(int(self._task.completed) + count, int(self._task.total or 0))

    def reach(self, done: int, total: int | None, left_s: float | None = None) -> None:
        done = max(done, int(self._task.completed))
        self._tasks.update(self._task.id, completed=done, total=total or None)
        parts = self._parts(self._task, left_s)
        if self._write is None:
            self._tasks.update(self._task.id, detail="  ".join(parts))
        elif (now_s := self._now_s()) - self._written_s >= LINE_EVERY_S:
            self._written_s = now_s
            self._write(": ".join(filter(None, (self._what, ", ".join(parts)))))

    def _parts(self, task: "Task", left_s: float | None) -> list[str]:
        """The known parts of `12.0 MiB of 40.0 MiB`, `30%`, `3.1 MiB/s`, `9s left`."""
        done = int(task.completed)
        parts = [self._amount(done)] if done else []
        if task.total:
            parts = [f"{self._amount(done)} of {self._amount(int(task.total))}", f"{min(1.0, done / task.total):.0%}"]
        if task.speed and self._amount is format_bytes:
            parts.append(f"{format_bytes(int(task.speed))}/s")
        left_s = task.time_remaining if left_s is None else left_s
        if task.total and left_s is not None:
            parts.append(f"{format_time(max(0.0, left_s))} left")
        return parts


@contextmanager
def progress(
    what: str, total: int | None, *, quiet: bool, amount: Callable[[int], str] = format_bytes
) -> Generator[Meter]:
    """Opens a meter. `total` None: unknown. `quiet`: show nothing. `amount`: of bytes, or of what else is counted."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    has_bar = console.is_terminal and not console.is_dumb_terminal and not quiet
    columns = TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[detail]}")
    with Progress(*columns, console=console, transient=True, disable=not has_bar) as tasks:
        yield TaskMeter(tasks, what, total, None if has_bar else _writer(quiet=quiet), time.monotonic, amount)


def _writer(*, quiet: bool) -> Callable[[str], None]:
    return lambda line: None if quiet else typer.echo(line, err=True)
