"""Processes and the children that they started, where there is a /proc."""

from pathlib import Path


def children(pid: int) -> list[int]:
    """None where there is no /proc, or no such process any more."""
    try:
        lists = [task.joinpath("children").read_text().split() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for found in lists for child in found]


def descendants(pid: int) -> list[int]:
    return [found for child in children(pid) for found in (child, *descendants(child))]
