"""A case of a run: a bench with its arguments, how long it may take, and the goals that its figures are held to.

A figure is named by what its line tells of, by values that the line must have, and by its name in there
(`bench.results`); of several such lines the last counts, or what `of` makes of them all.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """`case`: whose lines; empty for the case that the goal belongs to. `of`: one number of those found, in order."""

    what: str
    name: str
    where: Mapping[str, Any] = field(default_factory=dict[str, Any])
    case: str = ""
    of: Callable[[Sequence[float]], float] = lambda found: found[-1]

    def read(self, lines: Sequence[Line]) -> float | None:
        """None where no line has it."""
        found = [
            float(line[self.name])
            for line in lines
            if line.get("what") == self.what
            and all(line.get(name) == value for name, value in self.where.items())
            and isinstance(line.get(self.name), int | float)
        ]
        return self.of(found) if found else None


@dataclass(frozen=True, slots=True)
class Goal:
    """`figure`, over `beside` where there is one, at most or at least `bound`; without a bound it is only told.
    `baseline`: what the ratio is to, or what else the number means."""

    text: str
    figure: Figure
    baseline: str
    at_most: float | None = None
    at_least: float | None = None
    beside: Figure | None = None

    def value(self, case: str, lines_of: Mapping[str, Sequence[Line]]) -> float | None:
        """None where it was not measured."""
        found = self.figure.read(lines_of.get(self.figure.case or case, ()))
        if found is None or self.beside is None:
            return found
        beside = self.beside.read(lines_of.get(self.beside.case or case, ()))
        return found / beside if beside else None

    def verdict(self, value: float | None) -> str:
        if value is None:
            return "-"
        if self.at_most is None and self.at_least is None:
            return "told"
        high = self.at_most if self.at_most is not None else float("inf")
        low = self.at_least if self.at_least is not None else float("-inf")
        return "met" if low <= value <= high else "NOT MET"

    @property
    def bound(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g} to {self.at_most:g}"
        if self.at_most is not None:
            return f"<= {self.at_most:g}"
        return f">= {self.at_least:g}" if self.at_least is not None else ""


@dataclass(frozen=True, slots=True)
class Case:
    """`arguments`: of python. In them `{json}` is the file for its lines, `{work}` a folder that outlives the case, and
    `{seconds}` what is left of its limit once `setup_s` are taken off, for benches that bound themselves. `limit_s`: it
    is ended then. `worth_s`: with less time left it is not begun. `needs`: cases that must be done before."""

    name: str
    arguments: tuple[str, ...]
    limit_s: float
    worth_s: float = 0.0
    setup_s: float = 0.0
    goals: tuple[Goal, ...] = ()
    needs: tuple[str, ...] = ()

    def command(self, limit_s: float, json_file: str, work: str) -> list[str]:
        """`limit_s`: the one in force."""
        values = {"{json}": json_file, "{work}": work, "{seconds}": f"{max(5.0, limit_s - self.setup_s):.0f}"}
        filled = list(self.arguments)
        for name, value in values.items():
            filled = [one.replace(name, value) for one in filled]
        return filled


__all__ = ("Case", "Figure", "Goal", "Line")
