"""Real agents started by `cairn launch`: a tool that is run, a second question, and a session resumed after kill -9.

    python -m bench.launched_agents --npm DIR [--agents claude,codex,opencode] [--json FILE]

`--npm`: as for bench.agents. Each agent works in a project and a home with settings of the user that point elsewhere,
and must not change them. The first call starts the server. The model (bench.calling_model) calls the agent's shell once
and then answers. `known` are the tokens of prompt and answer of the request before, `beyond` those of them that were
computed again.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from adapters.system.blas import load_blas

load_blas()

from bench.agent_clients import CALL_TIMEOUT_S  # noqa: E402 - a BLAS only counts before MLX
from bench.agents import free_port  # noqa: E402
from bench.calling_model import write_calling_model  # noqa: E402

ROOT = Path(__file__).parents[1]
GOAL_TOKENS = 150
CONVERSATION_TOKENS = 5000
COMMAND = "ls > ../seen"
ELSEWHERE = "http://127.0.0.1:1"

USERS_FILES = {
    "home/.claude/settings.json": json.dumps(
        {"env": {"ANTHROPIC_BASE_URL": ELSEWHERE, "ANTHROPIC_API_KEY": "users"}}, indent=2
    )
    + "\n",
    "home/.codex/config.toml": f'''model_provider = "mine"
[model_providers.mine]
name = "mine"
base_url = "{ELSEWHERE}"
''',
    "home/.config/opencode/opencode.json": '{"$schema": "https://opencode.ai/config.json", "model": "mine/mine"}\n',
    "work/opencode.json": '{"$schema": "https://opencode.ai/config.json", "model": "mine/mine"}\n',
    "work/CLAUDE.md": "Be brief.\n",
    "work/AGENTS.md": "Be brief.\n",
}
"""In the form that the agents themselves give them when they start, with or without Cairn."""

QUESTIONS = (("first question", False), ("second question", True), ("resumed after kill -9", True))


@dataclass(frozen=True, slots=True)
class Launched:
    """`call`: of the agent's shell. `new` and `resumed`: its arguments before a question."""

    call: Mapping[str, object]
    new: Sequence[str]
    resumed: Sequence[str]


def _codex(*session: str) -> list[str]:
    return ["exec", *session, "--skip-git-repo-check", "-c", 'sandbox_mode="danger-full-access"']


AGENTS = {
    "claude": Launched(
        {"name": "Bash", "arguments": {"command": COMMAND}},
        ["--allowedTools", "Bash", "-p"],
        ["--allowedTools", "Bash", "-c", "-p"],
    ),
    "codex": Launched({"name": "exec_command", "arguments": {"cmd": COMMAND}}, _codex(), _codex("resume", "--last")),
    "opencode": Launched(
        {"name": "bash", "arguments": {"command": COMMAND, "description": "lists files"}}, ["run"], ["run", "-c"]
    ),
}


@dataclass(frozen=True, slots=True)
class Row:
    """A request. `known`: the tokens of prompt and answer of the one before it; `after`: of this one."""

    agent: str
    step: str
    prompt: int
    reused: int
    known: int
    after: int
    reason: str

    @property
    def beyond(self) -> int:
        return max(0, self.known - self.reused)


@dataclass
class Trial:
    """One agent with its home, its project and its server."""

    name: str
    npm: Path
    folder: Path
    port: int
    rows: list[Row] = field(default_factory=list)

    def play(self) -> None:
        for path, text in USERS_FILES.items():
            (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / path).write_text(text, encoding="utf-8")
        work = self.folder / "work"
        (work / "a.txt").write_text("hello\n")
        for command in (
            ["init", "-q"],
            ["add", "."],
            ["-c", "user.name=u", "-c", "user.email=u@v", "commit", "-qm", "a"],
        ):
            subprocess.run(["git", *command], cwd=work, check=True)
        agent, before, pid = AGENTS[self.name], self.digests(), 0
        write_calling_model(dict(agent.call), "Here they are.", self.folder / "models" / f"calls-{self.name}")
        try:
            for step, is_resumed in QUESTIONS:
                if step == QUESTIONS[-1][0]:
                    os.kill(pid, signal.SIGKILL)
                    self.take(QUESTIONS[1][0])
                done = self.launch([*(agent.resumed if is_resumed else agent.new), f"list the files, {step}"])
                if found := re.search(r"to stop it: kill (\d+)", done.stderr):
                    pid = int(found[1])
                if step == QUESTIONS[0][0]:
                    self.take(step)
                print(f"{self.name:9} {step:22} status {done.returncode}", *self.trouble(done))
            self.take(QUESTIONS[-1][0])
        finally:
            if pid:
                os.kill(pid, signal.SIGTERM)
        seen = self.folder / "seen"
        print(f"{self.name:9} the tool has run: {seen.exists() and 'a.txt' in seen.read_text()}")
        print(f"{self.name:9} the user's files are unchanged: {self.digests() == before}")

    def trouble(self, done: "subprocess.CompletedProcess[str]") -> list[str]:
        return [(done.stdout + done.stderr)[-600:]] if done.returncode else []

    def launch(self, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "CAIRN_"))}
        environment = kept | {
            "HOME": str(self.folder / "home"),
            "PWD": str(self.folder / "work"),
            "PATH": f"{self.npm / 'node_modules/.bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CAIRN_SERVER__PORT": str(self.port),
            "CAIRN_MODEL__DIRS": str(self.folder / "models"),
            "CAIRN_MODEL__DOWNLOAD": "false",
            "CAIRN_STORE__QUOTA": "4GiB",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }
        command = [sys.executable, "-m", "interfaces.cli", "launch", self.name, "--model", f"calls-{self.name}", "--"]
        return subprocess.run(
            [*command, *arguments],
            cwd=self.folder / "work",
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_TIMEOUT_S,
            check=False,
        )

    def digests(self) -> dict[str, str]:
        return {path: hashlib.sha256((self.folder / path).read_bytes()).hexdigest() for path in USERS_FILES}

    def take(self, step: str) -> None:
        """Adds the requests that the server has logged since it started, and that have no row yet. Those for titles are
        much shorter than those of the conversation."""
        log = self.folder / f"home/.cache/cairn/server-{self.port}.log"
        found = [dict(re.findall(r"(\w+)=(\S+)", line)) for line in log.read_text().splitlines() if " prompt=" in line]
        main = [one for one in found if int(one["prompt"]) > CONVERSATION_TOKENS]
        for one in main[0 if step == QUESTIONS[-1][0] else len(self.rows) :]:
            known = self.rows[-1].after if self.rows else 0
            after = int(one["prompt"]) + int(one["output"])
            self.rows.append(Row(self.name, step, int(one["prompt"]), int(one["reused"]), known, after, one["reason"]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--npm", type=Path, required=True)
    parser.add_argument("--agents", default=",".join(AGENTS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.agents.split(","):
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            trial = Trial(name, options.npm.resolve(), Path(folder), free_port())
            trial.play()
            rows += trial.rows
    print(f"{'agent':9} {'step':22} {'prompt':>7} {'reused':>7} {'known':>7} {'beyond':>7} end")
    for row in rows:
        over = "" if row.beyond <= GOAL_TOKENS else " above the goal"
        numbers = f"{row.prompt:>7} {row.reused:>7} {row.known:>7} {row.beyond:>7}"
        print(f"{row.agent:9} {row.step:22} {numbers} {row.reason}{over}")
    if options.json:
        options.json.write_text(json.dumps([{**asdict(row), "beyond": row.beyond} for row in rows], indent=1))


if __name__ == "__main__":
    main()
