"""Real agents run a tool that they are told to, and send the call back as they write it: what the next turn computes.

    python -m bench.agent_calls --npm DIR [--agents claude,codex,opencode]

A toy engine answers: a call of the agent's shell with odd spacing, key order and numbers, then a sentence. Everything
else is the server as it is. `kept`: the tokens of the call's own prompt and answer; `beyond`: what was computed of the
next prompt that does not come after them.
"""

import argparse
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.options import HYBRID, FakeOptions
from adapters.fake.tokenizer import FakeTokenizers
from application.events import RequestEnded
from application.settings import ModelSettings, ServerSettings, Settings, StoreSettings
from bench.agent_clients import AGENTS, Agent, Place
from bench.agents import RecordingEngine, free_port, record_engine
from bench.event_log import EventLog
from bench.servers import cairn_in_process
from domain.prefix.explanation import common_length
from interfaces.composition.backends import Backend
from interfaces.composition.service import Service

MODEL = "fake-hybrid"
CALLS = {
    "claude": 'Bash { "description":  "List \\u00e9 \\/ files", "timeout": 10000.0, "command" : "cd WORK && ls -a" }',
    "codex": 'exec_command { "cmd":  "ls -a" ,"yield_time_ms" : 1000 }',
    "opencode": 'bash { "description":  "List \\u00e9 \\/ files", "timeout": 10000.0, "command" : "ls -a" }',
}
_SPECIAL = 0xFF
"""A byte that no UTF-8 has, for special tokens."""


def reply_of(call: str) -> FakeOptions:
    """A model that calls once in each conversation that offers tools."""
    said, called = b"Done.", f"\n<call>{call}</call>".encode()

    def reply(prompt_ids: tuple[int, ...]) -> Sequence[int]:
        has_tools = bytes([_SPECIAL]) + b"tools\n" in _marked(prompt_ids)
        thought = b"I think.\n</think>\n" if _marked(prompt_ids).endswith(b"<think>\n") else b""
        return thought + (called if has_tools and not _has_result(prompt_ids) else said)

    return FakeOptions(layout=HYBRID, reply=reply, context_length=1 << 20)


def play(agent: Agent, npm: Path, folder: Path) -> None:
    work, home = folder / "work", folder / "home"
    work.mkdir()
    home.mkdir()
    subprocess.run(["git", "init", "-q", "."], cwd=work, check=True)
    options = reply_of(CALLS[agent.name].replace("WORK", str(work)))
    backend = Backend(lambda: FakeEngine(default=options), FakeModels(), FakeTokenizers(), default_grid=256)
    settings = Settings(
        server=ServerSettings(port=free_port()),
        model=ModelSettings(default=MODEL),
        store=StoreSettings(dir=str(folder / "store")),
    )
    log = EventLog()
    recorders: list[RecordingEngine] = []

    def record(service: Service) -> None:
        recorders.append(record_engine(service))

    with cairn_in_process(settings, log, record, backend=backend) as url:
        agent.ask(
            Place(npm, work, home, url, MODEL, max_output_tokens=4096),
            "list the files of this directory",
            is_resumed=False,
        )
    (recorder,) = recorders
    ended = {event.id: event for event in log.events if isinstance(event, RequestEnded)}
    known: list[tuple[int, ...]] = []
    for id, prompt_ids in recorder.prompt_ids.items():
        before = max(known, key=lambda one: common_length(one, prompt_ids), default=())
        if before and _has_result(prompt_ids):
            show(agent.name, before, prompt_ids, ended[id].usage.reused_tokens)
        known.append((*prompt_ids, *recorder.output_ids.get(id, ())))
    print(f"{agent.name:9} {len(known)} requests")


def show(name: str, before: Sequence[int], prompt_ids: Sequence[int], num_reused: int) -> None:
    num_computed = len(prompt_ids) - num_reused
    num_beyond = num_computed - (len(prompt_ids) - len(before))
    print(f"{name:9} prompt {len(prompt_ids)} kept {len(before)} computed {num_computed} beyond {num_beyond}")
    if (shared := common_length(before, prompt_ids)) < len(before):
        print(f"{'':9} was {_text(before, shared)!r}\n{'':9} now {_text(prompt_ids, shared)!r}")


def _marked(prompt_ids: Sequence[int]) -> bytes:
    return bytes(id if id < _SPECIAL else _SPECIAL for id in prompt_ids)


def _has_result(prompt_ids: Sequence[int]) -> bool:
    return bytes([_SPECIAL]) + b"tool\n" in _marked(prompt_ids)


def _text(ids: Sequence[int], at: int) -> str:
    return bytes(id for id in ids[max(0, at - 40) : at + 60] if id < 256).decode(errors="replace")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--agents", default=",".join(AGENTS))
    options = parser.parse_args()
    for name in options.agents.split(","):
        with tempfile.TemporaryDirectory() as folder:
            play(AGENTS[name], options.npm, Path(folder))


if __name__ == "__main__":
    main()
