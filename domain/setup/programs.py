"""Programs that keep their settings in files or dialogs of their own: the settings that point them at a server.

A setting is printed for the user to put in; nothing is written.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

from domain.setup.agents import Target


def cline(target: Target) -> str:
    return f"""\
Cline, the extension: in its settings
  API Provider    OpenAI Compatible
  Base URL        {target.url}/v1
  API Key         {target.token}
  Model ID        {target.model}
  Context Window  {target.context}, below Model Configuration; Max Output Tokens {target.output}
Cline, the command:
  {shlex.join(["cline", "auth", "-p", "openai", "-k", target.token, "-b", f"{target.url}/v1", "-m", target.model])}"""


def continue_dev(target: Target) -> str:
    text = json.dumps
    return f"""\
# ~/.continue/config.yaml, or a file named with: cn --config FILE
name: Cairn
version: 0.0.1
schema: v1
models:
  - name: Cairn
    provider: openai
    model: {text(target.model)}
    apiBase: {text(f"{target.url}/v1")}
    apiKey: {text(target.token)}
    roles: [chat, edit, apply]
    capabilities: [tool_use]
    defaultCompletionOptions:
      contextLength: {target.context}
      maxTokens: {target.output}"""


def zed(target: Target) -> str:
    model = {
        "name": target.model,
        "display_name": target.model,
        "max_tokens": target.context,
        "max_output_tokens": target.output,
        "capabilities": {"tools": True, "images": False, "parallel_tool_calls": True, "prompt_cache_key": False},
    }
    provider = {"api_url": f"{target.url}/v1", "available_models": [model]}
    return _file("Zed: settings.json; its agent panel asks for the key", {
        "language_models": {"openai_compatible": {"Cairn": provider}}
    }) + f"\n// API key: {target.token}"  # fmt: skip


def aider(target: Target) -> str:
    variables = {"OPENAI_API_BASE": f"{target.url}/v1", "OPENAI_API_KEY": target.token}
    return _exports(variables, "aider", "--model", f"openai/{target.model}", "--no-show-model-warnings")


def goose(target: Target) -> str:
    variables = {
        "GOOSE_PROVIDER": "openai",
        "GOOSE_MODEL": target.model,
        "GOOSE_CONTEXT_LIMIT": str(target.context),
        "OPENAI_HOST": target.url,
        "OPENAI_API_KEY": target.token,
    }
    return _exports(variables, "goose", "session")


def qwen(target: Target) -> str:
    variables = {
        "OPENAI_BASE_URL": f"{target.url}/v1",
        "OPENAI_API_KEY": target.token,
        "OPENAI_MODEL": target.model,
    }
    return _exports(variables, "qwen", "--auth-type", "openai")


def hermes(target: Target) -> str:
    text = json.dumps
    return f"""\
# ~/.hermes/config.yaml
model:
  provider: custom
  default: {text(target.model)}
  base_url: {text(f"{target.url}/v1")}
  api_key: {text(target.token)}
  context_length: {target.context}"""


def crush(target: Target) -> str:
    model = {
        "id": target.model,
        "name": target.model,
        "context_window": target.context,
        "default_max_tokens": target.output,
    }
    provider = {"type": "openai-compat", "base_url": f"{target.url}/v1", "api_key": target.token, "models": [model]}
    chosen = {"provider": "cairn", "model": target.model}
    return _file("crush: crush.json in the project, or ~/.config/crush/crush.json", {
        "providers": {"cairn": provider}, "models": {"large": chosen, "small": chosen}
    })  # fmt: skip


def _file(where: str, content: Mapping[str, Any]) -> str:
    return f"// {where}\n{json.dumps(content, indent=2, ensure_ascii=False)}"


def _exports(variables: Mapping[str, str], *command: str) -> str:
    lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join([*lines, shlex.join(command)])


PROGRAMS: Mapping[str, Callable[[Target], str]] = {
    "cline": cline,
    "continue": continue_dev,
    "zed": zed,
    "aider": aider,
    "goose": goose,
    "qwen-code": qwen,
    "crush": crush,
    "hermes": hermes,
}
"""The text of the settings by the program's name."""
