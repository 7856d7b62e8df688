"""What a run of cases found, as text: a line a case, a line a goal, and what went wrong, within a bound."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.case import Case, Line

MAX_CHARS = 7800
_TAIL_CHARS = 160


@dataclass(frozen=True, slots=True)
class Told:
    """How a case went: its outcome, how long it took, and the last lines it printed if that is of use."""

    outcome: str
    taken_s: float = 0.0
    tail: tuple[str, ...] = ()


def table(head: str, cases: Sequence[Case], told: Mapping[str, Told], lines_of: Mapping[str, Sequence[Line]]) -> str:
    """Cases that were not reached yet are waiting."""
    rows = [head]
    for case in cases:
        how = told.get(case.name, Told("waiting"))
        rows.append(f"{case.name}: {how.outcome}" + (f", {how.taken_s:.0f} s" if how.taken_s else ""))
        if how.outcome != "done":
            rows += [f"    | {line[:_TAIL_CHARS]}" for line in how.tail[-3:]]
        for goal in case.goals:
            value = goal.value(case.name, lines_of)
            measured = "-" if value is None else f"{value:.4g}"
            rows.append(f"  {goal.verdict(value):<8}{measured:>9} {goal.bound:<13}{goal.text} [{goal.baseline}]")
    text = "\n".join(rows)
    return text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 4] + "\n..."


__all__ = ("MAX_CHARS", "Told", "table")
