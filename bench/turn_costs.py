"""The costs of one short turn of a conversation, form by form: where the time to its first token goes.

    python -m bench.turn_costs [--models cairn-demo,windowed,cairn-demo-hybrid] [--rounds 3] [--words 240]

The requests of `bench.prefix`, to one server in this process, all of whose events are seen, in float32. Of each
scenario the round with the median time. All in milliseconds:

first token    at the client
before         until the request is in the engine's queue: HTTP, template, tokens
look up        from there to a restored state: hashing, look-up, fetch; restoring alone behind it
passes         of the network up to the first token: tokens and time of each
captures       blocks, snapshots, MiB and time, before the first token / behind it
rest           what lies between the restored state and the first token, beside passes and captures
behind         from the first token in the engine to the client
waits          how often the device was handed work or waited for, up to the first token
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from interfaces.composition.backends import import_backend

import_backend("mlx")

from adapters.huggingface.model_folder import embedded_folder  # noqa: E402 - MLX is imported by it
from adapters.mlx.runtime import arrays  # noqa: E402
from application.events.request import (  # noqa: E402
    FirstToken,
    PrefillChunkComputed,
    PrefixMatched,
    RequestQueued,
    StateCaptured,
)
from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings  # noqa: E402
from bench.common.event_log import EventLog  # noqa: E402
from bench.common.float32 import float32_copy  # noqa: E402
from bench.common.long_context_models import LONG_CONTEXT, write_long_context_model  # noqa: E402
from bench.common.prefix_scenarios import Contender, Scenarios, computed  # noqa: E402
from bench.common.servers import ServerProcess, cairn_in_process  # noqa: E402
from bench.http_client import Timeline  # noqa: E402

E = TypeVar("E")


class DeviceCalls:
    """The times of all calls that hand the device work or wait for it."""

    def __init__(self) -> None:
        self.at_ns: list[int] = []
        self._call: Callable[..., None] = vars(arrays)["_computing"]
        vars(arrays)["_computing"] = self._noted

    def _noted(self, call: Callable[..., None], *arguments: object) -> None:
        self.at_ns.append(time.monotonic_ns())
        self._call(call, *arguments)


@dataclass
class Watched(Contender):
    """A server in this process. `turns`: lines of the table with their time to the first token, by scenario."""

    log: EventLog = field(default_factory=EventLog)
    calls: DeviceCalls = field(default_factory=DeviceCalls)
    turns: dict[str, list[tuple[float, str]]] = field(default_factory=dict[str, list[tuple[float, str]]])

    def note(self, scenario: str, timeline: Timeline) -> str:
        self.turns.setdefault(scenario, []).append((timeline.ttft_s, self._line(timeline)))
        return super().note(scenario, timeline)

    def _line(self, timeline: Timeline) -> str:
        since_ns, seen_ns = int(timeline.sent_s * 1e9), int(timeline.first_token_s * 1e9)
        (queued,), (matched,) = self._since(since_ns, RequestQueued), self._since(since_ns, PrefixMatched)
        (first,), chunks = self._since(since_ns, FirstToken), self._since(since_ns, PrefillChunkComputed)
        captured = self._since(since_ns, StateCaptured)
        before = [event for event in captured if event.at_ns <= first.at_ns]
        spent = sum(one.at_ns - one.started_ns for one in (*chunks, *before))
        num_calls = sum(since_ns <= at <= first.at_ns for at in self.calls.at_ns)
        passes = " + ".join(f"{one.end - one.start} ({_ms(one.at_ns - one.started_ns)})" for one in chunks)
        cells = (
            _ms(seen_ns - since_ns),
            computed(timeline),
            _ms(queued.at_ns - since_ns),
            f"{_ms(matched.at_ns - queued.at_ns)}, {_ms(matched.at_ns - matched.started_ns)}",
            passes,
            f"{_sum(before)} / {_sum(captured[len(before) :])}",
            _ms(first.at_ns - matched.at_ns - spent),
            _ms(seen_ns - first.at_ns),
            num_calls,
        )
        return " | ".join(map(str, cells))

    def _since(self, since_ns: int, kind: type[E]) -> list[E]:
        found = [event for event in self.log.events if isinstance(event, kind)]
        return [event for event in found if cast(Any, event).at_ns >= since_ns]


def _ms(duration_ns: int) -> str:
    return f"{duration_ns / 1e6:.1f}"


def _sum(captured: Sequence[StateCaptured]) -> str:
    blocks, snapshots = sum(one.num_blocks for one in captured), sum(one.num_snapshots for one in captured)
    mib = sum(one.size_bytes for one in captured) / 2**20
    return f"{blocks} b {snapshots} s {mib:.1f} MiB {_ms(sum(one.at_ns - one.started_ns for one in captured))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="cairn-demo,windowed,cairn-demo-hybrid")
    parser.add_argument("--words", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    calls = DeviceCalls()
    for model in options.models.split(","):
        scratch = Path(tempfile.mkdtemp(prefix="cairn-bench-"))
        try:
            watched = watch(model, scratch, calls, options.words, options.rounds)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        print(f"\n{model}\n| | first token | computed | before | look up | passes | captures | rest | behind | waits |")
        print("|---" * 10 + "|")
        for scenario, turns in watched.turns.items():
            median_s = statistics.median_low(ttft_s for ttft_s, _ in turns)
            print(f"| {scenario} | {next(line for ttft_s, line in turns if ttft_s == median_s)} |")


def watch(model: str, scratch: Path, calls: DeviceCalls, words: int, rounds: int) -> Watched:
    if model in LONG_CONTEXT:
        folder = write_long_context_model(model, scratch / "model")
    else:
        folder = float32_copy(embedded_folder(model) or Path(model), scratch / "model")
    settings = Settings(
        model=ModelSettings(default=str(folder)),
        server=ServerSettings(port=0),
        store=StoreSettings(dir=str(scratch / "store")),
    )
    log = EventLog()
    with cairn_in_process(settings, log) as url:
        server = ServerProcess((), "", scratch / "log")
        server.url = url
        watched = Watched("cairn", server, str(folder), log=log, calls=calls)
        Scenarios([watched], words, rounds).run(["dialogues"])
    return watched


if __name__ == "__main__":
    main()
