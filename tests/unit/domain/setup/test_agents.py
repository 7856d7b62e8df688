"""The settings of agents: they win over the user's own, name the model everywhere, and hold no key where it is seen."""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from typing import Any

import pytest

from domain.errors import InvalidRequest
from domain.setup.agents import AGENTS, KEY_VARIABLE, PROVIDER, Setup, Target
from domain.setup.programs import PROGRAMS

ODD = 'org/it\'s "100%" $HOME \\ ü🚀'
KEY = 'sk-"secret"\'$x'
KEYLESS = Target("http://127.0.0.1:8000", ODD, 131_072)
KEYED = Target("http://127.0.0.1:8000", ODD, 131_072, KEY)


def codex_values(setup: Setup) -> Mapping[str, Any]:
    assert set(setup.arguments[::2]) == {"-c"}
    return tomllib.loads("\n".join(setup.arguments[1::2]))


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("target", [KEYLESS, KEYED], ids=["keyless", "keyed"])
def test_no_argument_has_the_key(name: str, target: Target) -> None:
    setup = AGENTS[name].setup(target)
    assert not any("secret" in argument for argument in setup.arguments)
    assert any("secret" in value for value in setup.variables.values()) is (target.key is not None)


def test_claude_code_is_set_up_where_its_settings_files_cannot_win() -> None:
    setup = AGENTS["claude"].setup(KEYLESS)
    option, text = setup.arguments
    winning = json.loads(text)["env"]
    assert option == "--settings"
    assert winning.items() >= setup.variables.items()
    assert winning["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    models = {name: value for name, value in winning.items() if name.endswith("_MODEL")}
    assert len(models) == 6
    assert set(models.values()) == {ODD}
    assert (winning["CLAUDE_CODE_ATTRIBUTION_HEADER"], winning["CLAUDE_CODE_TOTAL_TOKENS_REMINDER"]) == ("0", "off")
    assert winning["CLAUDE_CODE_MAX_CONTEXT_TOKENS"] == winning["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "131072"
    assert winning["ANTHROPIC_API_KEY"] == ""
    assert setup.removed == ("ANTHROPIC_API_KEY",)


def test_claude_code_gets_no_context_that_it_would_compact_at_once() -> None:
    small = AGENTS["claude"].setup(Target("http://127.0.0.1:8000", "m", 32_768))
    assert not any("CONTEXT" in name or "COMPACT" in name for name in small.variables)
    assert small.variables["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "4096"


def test_codex_gets_a_provider_and_the_context() -> None:
    values = codex_values(AGENTS["codex"].setup(KEYLESS))
    assert (values["model"], values["model_provider"]) == (ODD, PROVIDER)
    provider = {"name": "Cairn", "base_url": "http://127.0.0.1:8000/v1", "wire_api": "responses"}
    assert values["model_providers"] == {PROVIDER: provider}
    assert values["model_context_window"] == 131_072
    assert 0 < values["model_auto_compact_token_limit"] < 131_072
    keyed = AGENTS["codex"].setup(KEYED)
    assert codex_values(keyed)["model_providers"][PROVIDER] == provider | {"env_key": KEY_VARIABLE}
    assert keyed.variables == {KEY_VARIABLE: KEY}


def test_opencode_gets_its_configuration_as_a_variable() -> None:
    setup = AGENTS["opencode"].setup(KEYED)
    config = json.loads(setup.variables["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == f"{PROVIDER}/{ODD}"
    provider = config["provider"][PROVIDER]
    assert provider["options"] == {"baseURL": "http://127.0.0.1:8000/v1", "apiKey": KEY}
    assert provider["models"][ODD]["limit"] == {"context": 131_072, "output": 16_384}


@pytest.mark.parametrize("text", ["{env:HOME}", "{file:~/.ssh/id_ed25519}", "a{env:X}{{file:/b}", "{}", '{"a": {'])
def test_opencode_finds_nothing_to_insert_in_its_configuration(text: str) -> None:
    """It inserts variables and files before it reads the JSON, wherever `{env:NAME}` and `{file:PATH}` stand."""
    target = Target(f"http://127.0.0.1:8000/{text}", text, 131_072, text)
    content = AGENTS["opencode"].setup(target).variables["OPENCODE_CONFIG_CONTENT"]
    assert not re.search(r"\{(env|file):", content)
    provider = json.loads(content)["provider"][PROVIDER]
    assert list(provider["models"]) == [text]
    assert provider["options"] == {"baseURL": f"http://127.0.0.1:8000/{text}/v1", "apiKey": text}


@pytest.mark.parametrize("name", ["aider", "goose", "qwen-code"])
def test_printed_lines_are_for_a_shell(name: str) -> None:
    *exports, command = PROGRAMS[name](KEYED).splitlines()
    words = [shlex.split(line) for line in exports]
    assert {word[0] for word in words} == {"export"}
    assert any(KEY in word[1] for word in words)
    assert shlex.split(command)


@pytest.mark.parametrize("name", ["zed", "crush"])
def test_printed_files_are_json_below_their_comment(name: str) -> None:
    lines = [line for line in PROGRAMS[name](KEYLESS).splitlines() if not line.startswith("//")]
    found = json.dumps(json.loads("\n".join(lines)), ensure_ascii=False)
    assert "http://127.0.0.1:8000/v1" in found
    assert "131072" in found


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_gets_address_model_and_token(name: str) -> None:
    text = PROGRAMS[name](Target("http://127.0.0.1:8000", "org/model", 40_960, "a-key"))
    assert all(word in text for word in ("http://127.0.0.1:8000", "org/model", "a-key"))


@pytest.mark.parametrize("text", ["a\nb", "a\x1b[2J", "a\x00"])
def test_what_no_line_can_hold_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^model must be printable"):
        Target("http://127.0.0.1:8000", text, 1)
