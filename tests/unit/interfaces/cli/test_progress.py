"""The text of a bar and of a line in a log, by a clock that the test moves."""

from io import StringIO

import pytest
from rich.console import Console
from rich.progress import Progress, TextColumn

from interfaces.cli.terminal.progress import LINE_EVERY_S, TaskMeter, format_time, progress


class Ticks:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def lines_of(total: int | None, clock: Ticks) -> tuple[TaskMeter, list[str]]:
    lines: list[str] = []
    tasks = Progress(disable=True, get_time=clock)
    return TaskMeter(tasks, "working", total, lines.append, clock), lines


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0s"), (59.6, "1m 00s"), (125, "2m 05s"), (3725, "1h 02m"), (273_600, "3d 4h")]
)
def test_times_have_two_units(seconds: float, text: str) -> None:
    assert format_time(seconds) == text


def test_a_line_is_written_when_one_is_due() -> None:
    clock = Ticks()
    meter, lines = lines_of(4 << 20, clock)
    meter.advance(1 << 20)
    clock.now_s += LINE_EVERY_S / 2
    meter.advance(0)
    assert lines == []
    clock.now_s += LINE_EVERY_S / 2
    meter.advance(1 << 20)
    assert len(lines) == 1
    assert lines[0].startswith("working: 2 MiB of 4 MiB, 50%, ")
    meter.reach(5, 4 << 20)
    clock.now_s += LINE_EVERY_S
    meter.reach(5 << 20, 4 << 20)
    assert lines[1].startswith("working: 5 MiB of 4 MiB, 100%")  # never less than before


def test_an_unknown_total_is_left_out() -> None:
    clock = Ticks()
    meter, lines = lines_of(None, clock)
    clock.now_s += LINE_EVERY_S
    meter.reach(1 << 20, None)
    assert lines == ["working: 1 MiB"]


def test_what_is_counted_has_no_rate_and_the_seconds_that_are_given() -> None:
    clock, lines = Ticks(), list[str]()
    meter = TaskMeter(Progress(disable=True, get_time=clock), "measuring", None, lines.append, clock, str)
    for done, total, left_s in ((0, None, None), (0, 2, None), (1, 2, 42.0), (2, 2, None)):
        clock.now_s += LINE_EVERY_S
        meter.reach(done, total, left_s)
    assert lines == [
        "measuring",
        "measuring: 0 of 2, 0%",
        "measuring: 1 of 2, 50%, 42s left",
        "measuring: 2 of 2, 100%, 0s left",
    ]


def test_a_bar_is_gone_when_the_work_is_done() -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with Progress(TextColumn("{task.fields[detail]}"), console=console, transient=True) as tasks:
        meter = TaskMeter(tasks, "exporting", 4 << 20, None, Ticks())
        meter.reach(2 << 20, 4 << 20)
        console.print("between")  # makes it draw
    drawn = screen.getvalue()
    assert "2 MiB of 4 MiB  50%" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is cleared


def test_nothing_is_shown_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (True, False):
        with progress("exporting", 10, quiet=quiet) as meter:
            meter.advance(5)
            meter.reach(7, None)
    assert capsys.readouterr() == ("", "")
