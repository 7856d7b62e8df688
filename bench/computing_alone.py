"""What the turns of a long conversation would wait if nothing but computing took time: the baseline of what a server
adds to them.

A process of its own (`bench.next_turn`) computes as many new tokens as a turn had, on a state of as many tokens as that
reused. It runs where the server did, in the same run and once that has ended: figures of two machines, or of two hours
of one, tell little about each other.
"""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.results import Results

Step = tuple[float, int, int]
"""Milliseconds to the first token, tokens of the prompt, tokens reused."""

ROUNDS = 5
LEAST_S, MOST_S = 5.0, 240.0
"""It is not begun with less time left, and ended after so long."""
TURN = "turn "


def tell_computing_alone(
    model: Path, steps: Mapping[str, Step], scratch: Path, results: Results, deadline_s: float
) -> float | None:
    """Adds the line `alone`: what computing a turn takes, and the median of the turns (steps by the name `turn N`) as a
    ratio to it, which is returned. None, and told, where there is no turn, no time or no figure. `deadline_s`: by the
    monotonic clock."""
    turns = [step for name, step in steps.items() if name.startswith(TURN)]
    left_s = min(MOST_S, deadline_s - time.monotonic())
    if not turns or left_s < LEAST_S:
        print("computing alone is left out: " + ("no time" if turns else "no turn"), flush=True)
        return None
    num_reused = int(statistics.median(step[2] for step in turns))
    num_new = max(1, int(statistics.median(step[1] - step[2] for step in turns)))
    try:
        computing_ms = _computing_ms(model, num_reused, num_new, scratch / "next_turn.jsonl", left_s)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        print(f"computing alone: {error!r}", flush=True)
        results.add("failed", server="alone", error=repr(error))
        return None
    turns_ms = statistics.median(step[0] for step in turns)
    ratio = turns_ms / computing_ms
    sizes = {"tokens": num_reused, "new_tokens": num_new}
    results.add("alone", computing_ms=computing_ms, turns_ms=turns_ms, turns_over_computing=ratio, **sizes)
    print(f"{'computing alone':>22} {num_new:>8,} tokens {computing_ms:>10,.0f} ms ({num_reused:,})", flush=True)
    print(f"{'turns':>22} {ratio:.2f} of computing alone ({turns_ms:,.0f} ms)", flush=True)
    return ratio


def _computing_ms(model: Path, num_reused: int, num_new: int, file: Path, left_s: float) -> float:
    size = ("--tokens", str(num_reused), "--new", str(num_new), "--rounds", str(ROUNDS))
    command = [sys.executable, "-m", "bench.next_turn", "--model", str(model), *size, "--ways", "taken over"]
    more = ["--seconds", f"{left_s / 2:.0f}", "--json", str(file)]
    subprocess.run([*command, *more], check=True, timeout=left_s, stdout=subprocess.DEVNULL)
    found = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return float(next(line["computing_ms"] for line in reversed(found) if line["what"] == "taken over"))


__all__ = ("Step", "tell_computing_alone")
