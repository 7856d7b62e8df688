"""Three coding agents as command lines that ask one server and nothing else: their settings, and a call of each.

All run in an empty home; `HOME` and the project belong to one measurement.
"""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CALL_TIMEOUT_S = 300
CONTEXT_TOKENS = 65_536


@dataclass(frozen=True, slots=True)
class Place:
    """The place where an agent works: `npm` holds its package, `url` is the server's."""

    npm: Path
    work: Path
    home: Path
    url: str
    model: str
    max_output_tokens: int = 64


class Agent:
    """One agent's command line. `package`: on npm."""

    name: str
    package: str

    def command(self, place: Place, question: str, *, is_resumed: bool) -> Sequence[str]:
        """`is_resumed`: in the latest session of this project."""
        raise NotImplementedError

    def prepare(self, place: Place) -> Mapping[str, str]:
        """Write what it reads; returns its variables."""
        raise NotImplementedError

    def ask(self, place: Place, question: str, *, is_resumed: bool) -> None:
        """One call without a terminal. The agent's opinion of the answer does not count."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
        environment |= {"HOME": str(place.home), "PWD": str(place.work), "NO_PROXY": "127.0.0.1,localhost"}
        environment |= self.prepare(place)
        command = self.command(place, question, is_resumed=is_resumed)
        done = subprocess.run(
            [str(place.npm / "node_modules/.bin" / command[0]), *command[1:]],
            cwd=place.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            print(f"{self.name} ended with status {done.returncode}: {(done.stdout + done.stderr)[-400:]}")


class ClaudeCode(Agent):
    name = "claude"
    package = "@anthropic-ai/claude-code"

    def command(self, place: Place, question: str, *, is_resumed: bool) -> Sequence[str]:
        return ["claude", *(["-c"] if is_resumed else []), "-p", question]

    def prepare(self, place: Place) -> Mapping[str, str]:
        return {
            "ANTHROPIC_BASE_URL": place.url,
            "ANTHROPIC_AUTH_TOKEN": "none",
            "ANTHROPIC_MODEL": place.model,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(place.max_output_tokens),
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_ERROR_REPORTING": "1",
            "DISABLE_TELEMETRY": "1",
        }


class Codex(Agent):
    name = "codex"
    package = "@openai/codex"

    def command(self, place: Place, question: str, *, is_resumed: bool) -> Sequence[str]:
        session = ["exec", "resume", "--last"] if is_resumed else ["exec", "-s", "read-only"]
        return ["codex", *session, "--skip-git-repo-check", question]

    def prepare(self, place: Place) -> Mapping[str, str]:
        lines = [
            f'model = "{place.model}"',
            'model_provider = "cairn"',
            "[model_providers.cairn]",
            'name = "cairn"',
            f'base_url = "{place.url}/v1"',
            'wire_api = "responses"',
        ]
        folder = place.home / ".codex"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return {}


class OpenCode(Agent):
    name = "opencode"
    package = "opencode-ai"

    def command(self, place: Place, question: str, *, is_resumed: bool) -> Sequence[str]:
        return ["opencode", "run", *(["-c"] if is_resumed else []), question]

    def prepare(self, place: Place) -> Mapping[str, str]:
        model = f"cairn/{place.model}"
        limits = {"context": CONTEXT_TOKENS, "output": place.max_output_tokens}
        provider = {
            "npm": "@ai-sdk/openai-compatible",
            "name": "cairn",
            "options": {"baseURL": f"{place.url}/v1", "apiKey": "none"},
            "models": {place.model: {"name": place.model, "limit": limits}},
        }
        config = {
            "model": model,
            "small_model": model,
            "share": "disabled",
            "autoupdate": False,
            "provider": {"cairn": provider},
        }
        (place.work / "opencode.json").write_text(json.dumps(config), encoding="utf-8")
        return {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"}


AGENTS: Mapping[str, Agent] = {agent.name: agent for agent in (ClaudeCode(), Codex(), OpenCode())}
