"""The baseline of a long conversation's turns: the same new tokens computed without a server.

A process of its own (`bench.common.next_turn`) computes as many new tokens as a turn has, on a state of as many tokens
as that reuses. Server and process take turns, because a turn's time on one host differs by a half within a minute. Each
rests while the other computes, and memory holds both. BLAS, heap and MLX's environment are the server's
(`bench.common.as_served`).
"""

import json
import queue
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.common.results import ROOT, Results

Step = tuple[float, int, int]
"""Milliseconds to the first token, tokens of the prompt, tokens reused."""

LEAST_S, MOST_S = 5.0, 240.0
"""It is not begun with less time left, and given up when it takes so long to begin, or to take a turn."""
GRACE_S = 20.0


class ComputingAlone:
    """A context: its process ends with it. A failure is reported, and ends nothing else."""

    def __init__(self, model: Path, results: Results, deadline_s: float, kind: str = "turns") -> None:
        """`kind`: of requests, named beside the figures; `deadline_s`: by the monotonic clock."""
        self._model, self._results, self._deadline_s, self._kind = model, results, deadline_s, kind
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._is_given_up = False
        self._sizes: dict[str, int] = {}
        self._pairs: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if (process := self._process) is None:
            return
        assert process.stdin is not None, "it is asked by that"
        with suppress(OSError):  # it has ended by itself
            process.stdin.close()
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if self._reader is not None:
            self._reader.join()

    def after(self, step: Step) -> None:
        """The server's turn is over. The first one says how much there is to compute; each later one is
        reported beside the time of computing it alone."""
        if self._is_given_up:
            return
        try:
            if self._process is None:
                self._begin(step)
            else:
                computing_ms = float(self._ask()["computing_ms"])
                self._pairs.append((step[0], computing_ms))
                self._results.add("pair", kind=self._kind, turn_ms=step[0], computing_ms=computing_ms)
        except (OSError, ValueError, KeyError, TimeoutError) as error:
            self._is_given_up = True
            print(f"computing alone: {error!r}", flush=True)
            self._results.add("failed", server="alone", error=repr(error))

    def tell(self) -> float | None:
        """Adds the line `alone`: the medians of both sides, and the server's as a ratio to the other's, which is
        returned. None, and reported, without a pair."""
        if not self._pairs:
            print(f"computing alone is left out: none of {self._kind} was measured beside it", flush=True)
            return None
        sides = [list(side) for side in zip(*self._pairs, strict=True)]
        turns_ms, computing_ms = map(statistics.median, sides)
        ratio = turns_ms / computing_ms
        figures = {"turns_ms": turns_ms, "computing_ms": computing_ms, "turns_over_computing": ratio}
        self._results.add("alone", kind=self._kind, **figures, pairs=len(self._pairs), **self._sizes)
        for name, side in zip((self._kind, "computing alone"), sides, strict=True):
            spread = f"{min(side):,.0f} to {max(side):,.0f}"
            print(f"{name:>22} {self._sizes['new_tokens']:>8,} tokens {statistics.median(side):>10,.0f} ms ({spread})")
        print(f"{self._kind:>22} {ratio:.2f} of computing alone, {len(self._pairs)} by turns", flush=True)
        return ratio

    def _begin(self, step: Step) -> None:
        _, num_prompt, num_reused = step
        self._sizes = {"tokens": num_reused, "new_tokens": max(1, num_prompt - num_reused)}
        left_s = self._deadline_s - time.monotonic()
        if left_s < LEAST_S:
            raise TimeoutError("no time is left for it")
        size = ("--tokens", str(num_reused), "--new", str(self._sizes["new_tokens"]))
        module = ("-m", "bench.common.as_served", "bench.common.next_turn")
        command = [sys.executable, *module, "--model", str(self._model), *size]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=(self._process,), name="bench-alone", daemon=True)
        self._reader.start()
        self._answer()

    def _ask(self) -> dict[str, Any]:
        stdin = self._process.stdin if self._process is not None else None
        assert stdin is not None, "it has begun"
        stdin.write("\n")
        stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        left_s = max(LEAST_S, min(MOST_S, self._deadline_s - time.monotonic()))
        try:
            line = self._lines.get(timeout=left_s)
        except queue.Empty:
            raise TimeoutError(f"it did not answer within {left_s:.0f} s") from None
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None, "it answers by that"
        with process.stdout as answers:
            for line in answers:
                self._lines.put(line)
        self._lines.put("")  # its end, which is no answer
