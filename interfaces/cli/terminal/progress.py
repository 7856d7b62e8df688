"""Progress of work that takes a while, on stderr: a bar on a terminal, a line now and then anywhere else.

Never on stdout, and nothing at all where the output is for machines. What ends before the first line is due leaves no
trace in a log.
"""

import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Protocol

import typer

from domain.byte_size import format_bytes

if TYPE_CHECKING:
    from rich.console import Console


WINDOW_S = 20.0
"""The rate is that of the last so many seconds: work that slows down must not look quick for what it did before."""

MIN_SPAN_S = 0.5


class Pace:
    """`total` None or 0: not known. Times are monotonic seconds and never go back."""

    def __init__(self, total: int | None, now_s: float) -> None:
        self.total = total or None
        self.done = 0
        self._seen: deque[tuple[float, int]] = deque([(now_s, 0)])

    def reach(self, done: int, now_s: float) -> None:
        """`done` in all; work that is done never becomes less."""
        self.done = max(self.done, done)
        self._seen.append((now_s, self.done))
        while len(self._seen) > 2 and self._seen[1][0] <= now_s - WINDOW_S:
            self._seen.popleft()

    @property
    def share(self) -> float | None:
        """0 to 1; what was estimated too low counts as whole. None where nobody knows."""
        return None if self.total is None else min(1.0, self.done / self.total)

    @property
    def rate(self) -> float | None:
        """A second; None before that can be told."""
        (start_s, before), (end_s, done) = self._seen[0], self._seen[-1]
        return (done - before) / (end_s - start_s) if end_s - start_s >= MIN_SPAN_S else None

    @property
    def left_s(self) -> float | None:
        """Seconds until it is whole, at this rate; None where nobody knows."""
        if self.total is None or not self.rate:
            return None
        return max(0, self.total - self.done) / self.rate


def told_time(seconds: float) -> str:
    """`9s`, `2m 05s`, `3h 12m`, `5d 3h`: two units at most."""
    whole = int(seconds + 0.5)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600}h"


def told_latency(seconds: float) -> str:
    """`18.2ms`, `4.12s`, `2m 05s`."""
    if seconds < 1:
        return f"{seconds * 1e3:.1f}ms"
    return f"{seconds:.2f}s" if seconds < 60 else told_time(seconds)


LINE_EVERY_S = 10.0


class Unit(Enum):
    """What is counted."""

    BYTES = "bytes"
    TOKENS = "tokens"
    REQUESTS = "requests"

    def told(self, count: float) -> str:
        """`1.5 GiB`, `1,234 tokens`."""
        if self is Unit.BYTES:
            return format_bytes(int(count))
        return f"{count:,.0f} {self.value}" if count >= 10 or count == int(count) else f"{count:.1f} {self.value}"


class Shown(Protocol):
    """Any thread, one at a time."""

    def advance(self, count: int) -> None:
        """So many more are done."""
        ...

    def reach(self, done: int, total: int | None) -> None:
        """So many are done in all, of so many; None: not known."""
        ...


class Opener(Protocol):
    """`progress`, or what stands in for it."""

    def __call__(self, what: str, total: int | None, unit: Unit, *, quiet: bool) -> AbstractContextManager[Shown]: ...


class Lines:
    """A line when one is due. `tell` writes it."""

    def __init__(
        self, what: str, total: int | None, unit: Unit, tell: Callable[[str], None], now_s: Callable[[], float]
    ) -> None:
        self._what = what
        self._unit = unit
        self._tell = tell
        self._now_s = now_s
        self._pace = Pace(total, now_s())
        self._told_s = now_s()

    def advance(self, count: int) -> None:
        self.reach(self._pace.done + count, self._pace.total)

    def reach(self, done: int, total: int | None) -> None:
        now_s = self._now_s()
        self._pace.total = total or None
        self._pace.reach(done, now_s)
        if now_s - self._told_s >= LINE_EVERY_S:
            self._told_s = now_s
            self._tell(f"{self._what}: {', '.join(_parts(self._pace, self._unit))}")


class _Nothing:
    def advance(self, count: int) -> None:
        """Nobody looks."""

    def reach(self, done: int, total: int | None) -> None:
        """Nobody looks."""


class Bar:
    """On a terminal; gone when the work has ended."""

    def __init__(self, console: "Console", what: str, total: int | None, unit: Unit) -> None:
        from rich.progress import BarColumn, Progress, TextColumn

        self._unit = unit
        self._pace = Pace(total, time.monotonic())
        columns = TextColumn("{task.description}"), BarColumn(bar_width=30), TextColumn("{task.fields[told]}")
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task(what, total=total or None, told="")

    def __enter__(self) -> "Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, count: int) -> None:
        self.reach(self._pace.done + count, self._pace.total)

    def reach(self, done: int, total: int | None) -> None:
        self._pace.total = total or None
        self._pace.reach(done, time.monotonic())
        told = "  ".join(_parts(self._pace, self._unit))
        done = self._pace.done if total is None else min(self._pace.done, total)
        self._progress.update(self._task, completed=done, total=total or None, told=told)


@contextmanager
def progress(what: str, total: int | None, unit: Unit, *, quiet: bool) -> Generator[Shown]:
    """`total` None: not known. `quiet`: show nothing."""
    if quiet:
        yield _Nothing()
    elif is_terminal():
        from rich.console import Console

        with Bar(Console(stderr=True), what, total, unit) as bar:
            yield bar
    else:
        yield Lines(what, total, unit, lambda line: typer.echo(line, err=True), time.monotonic)


def is_terminal() -> bool:
    """Whether a bar can be drawn on stderr."""
    from rich.console import Console

    console = Console(stderr=True)
    return sys.stderr.isatty() and console.is_terminal and not console.is_dumb_terminal


def _parts(pace: Pace, unit: Unit) -> list[str]:
    """`12.0 MiB of 40.0 MiB`, `30 %`, `3.1 MiB/s`, `9 s left`: what is known of it."""
    parts = [unit.told(pace.done)]
    if pace.total is not None:
        parts = [f"{format_bytes(pace.done) if unit is Unit.BYTES else f'{pace.done:,}'} of {unit.told(pace.total)}"]
    if pace.share is not None:
        parts.append(f"{pace.share:.0%}")
    if pace.rate:
        parts.append(f"{unit.told(pace.rate)}/s")
    if pace.left_s is not None:
        parts.append(f"{told_time(pace.left_s)} left")
    return parts
