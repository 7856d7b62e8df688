"""Real agent command lines on Cairn: the tokens that each request computes beyond those never sent before.

    python -m bench.agents --npm DIR [--agents claude,codex,opencode] [--layouts attention,hybrid]
                           [--json FILE]

`--npm`: where `npm install --prefix DIR` put the agents' packages. Each agent runs in an
empty project and an empty home, on the loopback only: a question, a new session with another question, that session
resumed, and resumed and new once more after a restart. `new` are the prompt's tokens beyond the longest prefix that it
shares with anything computed before; `beyond` is what was computed in excess. Below each row: the text around the first
token that differs from the nearest earlier request, there and here.
"""

import argparse
import json
import socket
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from adapters.system.blas import load_blas

load_blas()

from adapters.tokenizers.loader import HfTokenizerLoader  # noqa: E402 - a BLAS only counts before MLX
from application.events import RequestEnded, RequestQueued  # noqa: E402
from application.ports.engine import Engine, StepBatch, Submission, Tokens  # noqa: E402
from application.ports.tokenizer import Tokenizer  # noqa: E402
from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings  # noqa: E402
from bench.agents.clients import AGENTS, Agent, Place  # noqa: E402
from bench.common.event_log import EventLog  # noqa: E402
from bench.common.long_context_models import write_long_context_model  # noqa: E402
from bench.common.servers import cairn_in_process  # noqa: E402
from domain.ids import ModelId, RequestId  # noqa: E402
from domain.models.model_card import ModelSource  # noqa: E402
from domain.prefix.explanation import common_length  # noqa: E402
from domain.request.request import RequestKind  # noqa: E402
from interfaces.composition.service import Service  # noqa: E402

GOAL_TOKENS = 32
SHOWN_TOKENS = 12
"""Around a divergence, on either side of it."""

STEPS = (
    ("first request", "say hi", False),
    ("new session, other question", "what is in this directory", False),
    ("resumed", "and now", True),
    ("resumed after a restart", "and then", True),
    ("new session after a restart", "which day is it", False),
)
"""The questions, and whether each continues the latest session."""

RESTART_BEFORE = 3


class RecordingEngine:
    """An Engine around another that remembers the tokens of every prompt and answer."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.prompt_ids: dict[RequestId, tuple[int, ...]] = {}
        self.output_ids: dict[RequestId, list[int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def start(self, receive: Callable[[StepBatch], None]) -> None:
        def record(batch: StepBatch) -> None:
            for id, _, item in batch.items:
                if isinstance(item, Tokens):
                    self.output_ids.setdefault(id, []).extend(item.token_ids)
            receive(batch)

        self._engine.start(record)

    def submit(self, submission: Submission) -> None:
        self.prompt_ids[submission.id] = submission.prompt.token_ids
        self._engine.submit(submission)


@dataclass(frozen=True, slots=True)
class Row:
    """One request. `was` and `now`: the text around the first token that differs, where the prompt itself changed."""

    agent: str
    layout: str
    step: str
    num_prompt: int
    num_computed: int
    num_new: int
    was: str = ""
    now: str = ""

    @property
    def num_beyond(self) -> int:
        return self.num_computed - self.num_new


@dataclass
class Account:
    """Everything computed so far, as tokens."""

    agent: str
    layout: str
    tokenizer: Tokenizer
    known: list[tuple[int, ...]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def take(self, step: str, log: EventLog, engine: RecordingEngine) -> None:
        """Account for the requests of one step, in order of arrival."""
        ended = {event.id: event for event in log.events if isinstance(event, RequestEnded)}
        for queued in [event for event in log.events if isinstance(event, RequestQueued)]:
            if queued.kind is not RequestKind.CHAT or queued.id not in ended:
                continue
            ids = engine.prompt_ids[queued.id]
            self.rows.append(self._row(step, ids, ended[queued.id].usage.reused_tokens))
            self.known.append(ids + tuple(engine.output_ids.get(queued.id, ())))
        log.events.clear()

    def _row(self, step: str, ids: tuple[int, ...], num_reused: int) -> Row:
        nearest = max(self.known, key=lambda known: common_length(known, ids), default=())
        shared = common_length(nearest, ids)
        row = Row(self.agent, self.layout, step, len(ids), len(ids) - num_reused, max(1, len(ids) - shared))
        if not shared:
            return row
        was, now = (self._around(tokens, shared) for tokens in (nearest, ids))
        return Row(row.agent, row.layout, row.step, row.num_prompt, row.num_computed, row.num_new, was, now)

    def _around(self, tokens: Sequence[int], position: int) -> str:
        before = tokens[max(0, position - SHOWN_TOKENS) : position]
        return f"{self.tokenizer.decode(before)}|{self.tokenizer.decode(tokens[position : position + SHOWN_TOKENS])}"


def play(agent: Agent, npm: Path, layout: str, folder: Path) -> list[Row]:
    """All steps of one agent on one model. `folder` is empty."""
    model = write_long_context_model(layout, folder / "models" / layout)
    tokenizer = HfTokenizerLoader().load(ModelSource(ModelId(layout), str(model)))
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    subprocess.run(["git", "init", "-q", "."], cwd=work, check=True)
    account, log = Account(agent.name, layout, tokenizer), EventLog()
    settings = Settings(
        server=ServerSettings(port=free_port()),
        model=ModelSettings(default=layout, dirs=(str(model.parent),), download=False),
        store=StoreSettings(dir=str(folder / "store")),
    )
    recorders: list[RecordingEngine] = []
    for steps in (STEPS[:RESTART_BEFORE], STEPS[RESTART_BEFORE:]):
        with cairn_in_process(settings, log, lambda service: recorders.append(record_engine(service))) as url:
            place = Place(npm, work, home, url, layout)
            for step, question, is_resumed in steps:
                agent.ask(place, question, is_resumed=is_resumed)
                account.take(step, log, recorders[-1])
    return account.rows


def record_engine(service: Service) -> RecordingEngine:
    """Before the service is started."""
    from dependency_injector import providers

    recorder = RecordingEngine(service.engine)
    service.container.engine.override(providers.Object(recorder))
    service.engine = recorder
    return recorder


def free_port() -> int:
    """The same for both servers: a restarted one is found where the first was."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def show(rows: Sequence[Row]) -> None:
    print(f"{'agent':9} {'layout':10} {'step':28} {'prompt':>7} {'computed':>9} {'new':>7} {'beyond':>7}")
    for row in rows:
        print(
            f"{row.agent:9} {row.layout:10} {row.step:28} {row.num_prompt:>7} {row.num_computed:>9} {row.num_new:>7}"
            f" {row.num_beyond:>7}{'' if row.num_beyond <= GOAL_TOKENS else ' above the goal'}"
        )
        if row.was:
            print(f"{'':10} was {row.was!r}\n{'':10} now {row.now!r}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--layouts", default="attention,hybrid")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    agents = [AGENTS[name] for name in options.agents.split(",")]
    rows: list[Row] = []
    for agent in agents:
        for layout in options.layouts.split(","):
            with tempfile.TemporaryDirectory() as folder:
                rows += play(agent, options.npm, layout, Path(folder))
    show(rows)
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "beyond": row.num_beyond} for row in rows], indent=1))


if __name__ == "__main__":
    main()
