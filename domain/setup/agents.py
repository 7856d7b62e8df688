"""Coding agents that are started against a server by arguments and environment alone: no file of the user is changed.

The settings must win over the files of the user. Claude Code lets the `env` of a settings file win over its
environment, and `--settings` over that. codex merges a provider of the command line into one of the same name in its
file, so the name is one that files do not have.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from domain.errors import require

PROVIDER = "cairn-launch"

NO_KEY = "none"
"""The token for a server without a key: Claude Code asks for a login without one."""

KEY_VARIABLE = "CAIRN_SERVER__API_KEY"
"""The variable of the server's key, which the `cairn` commands read as well."""

MAX_OUTPUT = 32_000
LARGE_CONTEXT = 65_536
"""Claude Code compacts some 13,000 tokens and an answer's length before the end of the context. In a smaller one that
is before its first prompt ends; there it compacts when the server refuses a prompt as too long."""


@dataclass(frozen=True, slots=True)
class Target:
    """The server and the model that an agent uses. `url`: without a path. `context`: tokens of prompt and answer
    together. `key`: the server's; None if it has none."""

    url: str
    model: str
    context: int
    key: str | None = None

    def __post_init__(self) -> None:
        require(self.url.isprintable(), "url", "must be printable text on one line")
        require(self.model.isprintable(), "model", "must be printable text on one line")

    @property
    def output(self) -> int:
        """The limit on the tokens of an answer."""
        return min(MAX_OUTPUT, self.context // 8)

    @property
    def token(self) -> str:
        return NO_KEY if self.key is None else self.key


@dataclass(frozen=True, slots=True)
class Setup:
    """The start of an agent. `arguments`: before the user's, without secrets. `removed`: variables it must not see."""

    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])
    removed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent that can be started. `install`: how its makers distribute it."""

    title: str
    install: str
    setup: Callable[[Target], Setup]


def claude(target: Target) -> Setup:
    """All sizes and the subagents use the one model: they request names of their own otherwise. The attribution header
    and the reminders change a prompt that would be reused."""
    sizes = ("OPUS", "SONNET", "HAIKU", "FABLE")
    settings = {
        "ANTHROPIC_BASE_URL": target.url,
        "ANTHROPIC_MODEL": target.model,
        **{f"ANTHROPIC_DEFAULT_{size}_MODEL": target.model for size in sizes},
        "CLAUDE_CODE_SUBAGENT_MODEL": target.model,
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(target.output),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_TOTAL_TOKENS_REMINDER": "off",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if target.context >= LARGE_CONTEXT:
        settings |= dict.fromkeys(
            ("CLAUDE_CODE_MAX_CONTEXT_TOKENS", "CLAUDE_CODE_AUTO_COMPACT_WINDOW"), str(target.context)
        )
    token = {"ANTHROPIC_AUTH_TOKEN": target.token}
    winning = {**settings, "ANTHROPIC_API_KEY": ""} | (token if target.key is None else {})
    arguments = ("--settings", json.dumps({"env": winning}, ensure_ascii=False))
    return Setup(arguments, settings | token, ("ANTHROPIC_API_KEY",))


def codex(target: Target) -> Setup:
    """JSON's strings are TOML's, but for escaped surrogates."""
    model, url = (json.dumps(text, ensure_ascii=False) for text in (target.model, f"{target.url}/v1"))
    env_key = "" if target.key is None else f', env_key = "{KEY_VARIABLE}"'
    values = (
        f"model={model}",
        f'model_provider="{PROVIDER}"',
        f'model_providers.{PROVIDER}={{name = "Cairn", base_url = {url}, wire_api = "responses"{env_key}}}',
        f"model_context_window={target.context}",
        f"model_auto_compact_token_limit={target.context - target.output}",
    )
    arguments = tuple(word for value in values for word in ("-c", value))
    return Setup(arguments, {} if target.key is None else {KEY_VARIABLE: target.key})


def opencode(target: Target) -> Setup:
    """The key is part of the variable: opencode would insert another variable's text without quoting it. It inserts
    `{env:NAME}` and `{file:PATH}` before it reads the JSON, so a brace that begins no object is escaped."""
    model = f"{PROVIDER}/{target.model}"
    limit = {"context": target.context, "output": target.output}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Cairn",
        "options": {"baseURL": f"{target.url}/v1", "apiKey": target.token},
        "models": {target.model: {"name": target.model, "limit": limit}},
    }
    config = {"model": model, "small_model": model, "share": "disabled", "provider": {PROVIDER: provider}}
    text = re.sub(r'\{(?!["}])', r"\\u007b", json.dumps(config, ensure_ascii=False))
    return Setup(variables={"OPENCODE_CONFIG_CONTENT": text})


AGENTS: Mapping[str, Agent] = {
    "claude": Agent("Claude Code", "npm install -g @anthropic-ai/claude-code", claude),
    "codex": Agent("codex", "npm install -g @openai/codex", codex),
    "opencode": Agent("opencode", "npm install -g opencode-ai", opencode),
}
"""By the name of their command."""
