"""Requests as rows: how far each open one is, and what became of the last that ended.

Columns go as the terminal gets narrower, the least telling first; what is left never wraps.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from domain.shown import shown
from interfaces.cli.pace import told_latency, told_time
from interfaces.http.admin.request_body import RequestBody
from interfaces.http.admin.requests import RequestListBody

MAX_ENDED = 10
"""Shown where there is no end to the room."""

BAR_WIDTH = 10
NARROW = 72
ID_WIDTH = 33
"""Of an id that Cairn makes."""


@dataclass(frozen=True, slots=True)
class Column:
    """`weight`: those with the highest go first. A number is set to the right."""

    title: str
    width: int
    weight: int
    is_number: bool = False


COLUMNS = (
    Column("request", 20, 0),
    Column("stage", 17, 0),
    Column("done", 15, 1),
    Column("prompt", 9, 2, is_number=True),
    Column("age", 8, 3, is_number=True),
    Column("reused", 9, 3, is_number=True),
    Column("output", 7, 4, is_number=True),
    Column("TTFT", 8, 5, is_number=True),
    Column("model", 18, 6),
    Column("key", 10, 7),
)


def request_lines(requests: RequestListBody, width: int, room: int | None) -> Iterator[Text]:
    """At most `room` lines; a title counts."""
    num_ended = MAX_ENDED if room is None else max(0, room - 1 - len(requests.open))
    rows = [*requests.open, *requests.ended[:num_ended]]
    if room is not None and room < 2:
        return
    columns = _columns_for(width, max((len(row.id) for row in rows), default=0))
    yield Text(_row([column.title for column in columns], columns), "bold")
    if not rows:
        yield Text("no request yet", "dim")
    for row in rows[: None if room is None else room - 1]:
        cells = _cells(row)
        text = _row([cells[column.title] for column in columns], columns)
        yield Text(text, "dim" if row.end is not None else "")


def _columns_for(width: int, id_width: int) -> Sequence[Column]:
    """Those that fit beside each other, the first and the stage always. An id can be copied whole from a terminal that
    is not narrow."""
    first = replace(COLUMNS[0], width=max(COLUMNS[0].width, min(id_width, ID_WIDTH if width >= NARROW else 0)))
    chosen = [first, *COLUMNS[1:]]
    while (free := width + 2 - sum(column.width + 2 for column in chosen)) < 0:
        heaviest = max(chosen, key=lambda column: column.weight)
        if not heaviest.weight:
            return chosen
        chosen.remove(heaviest)
    return [replace(first, width=max(first.width, min(id_width, first.width + free))), *chosen[1:]]


def _row(cells: Sequence[str], columns: Sequence[Column]) -> str:
    parts: list[str] = []
    for cell, column in zip(cells, columns, strict=True):
        text = shown(cell, column.width)
        parts.append(text.rjust(column.width) if column.is_number else text.ljust(column.width))
    return "  ".join(parts).rstrip()


def _cells(row: RequestBody) -> dict[str, str]:
    ttft_s = row.times.ttft_s
    return {
        "request": row.id,
        "model": row.model,
        "key": row.key,
        "stage": _stage(row),
        "done": _done(row),
        "prompt": f"{row.prompt_tokens:,}",
        "reused": f"{sum(row.reused.values()):,}",
        "output": f"{row.output_tokens:,}",
        "TTFT": "" if ttft_s is None else told_latency(ttft_s),
        "age": told_time(row.age_s),
    }


def _stage(row: RequestBody) -> str:
    if row.end is not None:
        return row.end.error_code or row.end.reason
    if row.preempted:
        return "preempted"
    return f"waits for {row.waits_for}" if row.waits_for else {"queue": "waits"}.get(row.stage, row.stage)


def _done(row: RequestBody) -> str:
    """Of the prompt, while it is not whole."""
    if row.end is not None or row.stage == "decode" or not row.prompt_tokens:
        return ""
    share = min(1.0, max(0.0, row.done_tokens / row.prompt_tokens))
    filled = round(BAR_WIDTH * share)
    return f"{'#' * filled}{'.' * (BAR_WIDTH - filled)} {share:4.0%}"


__all__ = ("COLUMNS", "request_lines")
