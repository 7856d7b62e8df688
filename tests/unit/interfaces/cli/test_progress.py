"""How far, how fast, how long: what a bar and a line in a log say, by a clock that the test moves."""

from io import StringIO

import pytest
from rich.console import Console

from interfaces.cli.terminal.progress import LINE_EVERY_S, WINDOW_S, Bar, Lines, Pace, Unit, progress, told_time


class Ticks:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_pace_is_that_of_late() -> None:
    pace = Pace(1000, 0.0)
    assert (pace.share, pace.rate, pace.left_s) == (0.0, None, None)
    pace.reach(100, 1.0)
    assert (pace.share, pace.rate, pace.left_s) == (0.1, 100.0, 9.0)
    for second in range(2, 2 + 3 * int(WINDOW_S)):
        pace.reach(100 + second, float(second))
    assert pace.rate == pytest.approx(1.0)
    pace.reach(50, 100.0)
    assert pace.done == 161  # never less
    pace.reach(2000, 101.0)
    assert (pace.share, pace.left_s) == (1.0, 0.0)


def test_nobody_knows_how_much_there_is() -> None:
    pace = Pace(None, 0.0)
    pace.reach(10, 5.0)
    assert (pace.share, pace.left_s, pace.rate) == (None, None, 2.0)
    assert Pace(0, 0.0).total is None


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.2, "0s"), (59.6, "1m 00s"), (125, "2m 05s"), (3725, "1h 02m"), (273_600, "3d 4h")]
)
def test_times_are_told_in_two_units(seconds: float, told: str) -> None:
    assert told_time(seconds) == told


def test_a_line_is_told_when_one_is_due() -> None:
    clock, lines = Ticks(), list[str]()
    told = Lines("exporting", 4 << 20, Unit.BYTES, lines.append, clock)
    told.advance(1 << 20)
    clock.now_s += LINE_EVERY_S / 2
    told.advance(0)
    assert lines == []
    clock.now_s += LINE_EVERY_S / 2
    told.advance(1 << 20)
    told.advance(1 << 20)
    assert lines == ["exporting: 2 MiB of 4 MiB, 50%, 205 KiB/s, 10s left"]


def test_what_is_not_bytes_is_named_once() -> None:
    clock, lines = Ticks(), list[str]()
    told = Lines("warming m", None, Unit.TOKENS, lines.append, clock)
    clock.now_s += LINE_EVERY_S
    told.reach(1234, 5000)
    clock.now_s += LINE_EVERY_S
    told.reach(1235, None)
    assert lines == [
        "warming m: 1,234 of 5,000 tokens, 25%, 123 tokens/s, 31s left",
        "warming m: 1,235 tokens, 62 tokens/s",
    ]


def test_a_bar_is_gone_when_the_work_is_done() -> None:
    screen = StringIO()
    console = Console(file=screen, force_terminal=True, width=100, color_system=None)
    with Bar(console, "exporting", 4 << 20, Unit.BYTES) as bar:
        bar.advance(1 << 20)
        bar.reach(2 << 20, 4 << 20)
        console.print("between")  # makes it draw
    drawn = screen.getvalue()
    assert "2 MiB of 4 MiB  50%" in drawn
    assert drawn.endswith("\x1b[2K")  # the line is cleared


def test_nothing_is_shown_to_machines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("exporting", 10, Unit.BYTES, quiet=True) as bar:
        bar.advance(5)
        bar.reach(7, None)
    with progress("exporting", 10, Unit.BYTES, quiet=False) as bar:
        assert isinstance(bar, Lines)  # nobody's terminal
    assert capsys.readouterr() == ("", "")
