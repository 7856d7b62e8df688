"""`cairn launch` starts an agent with what it needs and nothing else, and a server where none answers."""

import hashlib
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from adapters.fake.options import FakeOptions
from application.settings import ServerSettings
from domain.setup.agents import NO_KEY
from interfaces.cli.commands.launch import PLACEHOLDER
from tests.support.http.clients import key_argument
from tests.support.http.servers.fake_service import DEFAULT_MODEL, FakeService, fake_service, wait_until
from tests.support.processes.cli_process import run_cairn, run_here
from tests.support.processes.fake_commands import Call, FakeCommands

KEY = "hunter2"
USERS_FILES = {
    ".claude/settings.json": '{"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}}',
    ".codex/config.toml": 'model = "mine"\n',
    ".config/opencode/opencode.json": '{"model": "mine/mine"}',
}


@pytest.fixture(scope="module")
def keyless() -> Iterator[FakeService]:
    with fake_service(FakeOptions(context_length=70_000)) as running:
        load(running)
        yield running


@pytest.fixture(scope="module")
def keyed() -> Iterator[FakeService]:
    with fake_service(FakeOptions(context_length=70_000), settings=ServerSettings(port=0, api_key=KEY)) as running:
        running.client.headers["authorization"] = f"Bearer {KEY}"
        load(running)
        yield running


def load(running: FakeService) -> None:
    running.client.post("/tokenize", json={"model": DEFAULT_MODEL, "prompt": "a"}).raise_for_status()


@pytest.fixture
def agents(tmp_path: Path) -> FakeCommands:
    commands = FakeCommands(tmp_path)
    for name in ("claude", "codex", "opencode"):
        commands.add(name)
    return commands


def launch(agents: FakeCommands, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    path = f"{agents.folder}:{os.environ['PATH']}"
    return run_cairn(agents.folder.parent, "launch", *with_model(arguments), PATH=path, **variables)


def ask(agents: FakeCommands, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same in this process, for what starts no agent."""
    path = f"{agents.folder}:{os.environ['PATH']}"
    return run_here(agents.folder.parent, "launch", *with_model(arguments), PATH=path)


def with_model(arguments: tuple[str, ...]) -> list[str]:
    """The server of these tests has no settings that name its default model."""
    name, *rest = arguments
    return [name, *(["--model", DEFAULT_MODEL] if "--url" in rest and "--model" not in rest else []), *rest]


def only_call(agents: FakeCommands) -> Call:
    (call,) = agents.calls()
    return call


@pytest.mark.parametrize("name", ["claude", "codex", "opencode"])
def test_the_agent_gets_the_server_and_no_file_is_changed(
    keyless: FakeService, agents: FakeCommands, tmp_path: Path, name: str
) -> None:
    for path, text in USERS_FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    before = digests(tmp_path)
    variables = {"ANTHROPIC_API_KEY": "users", "CAIRN_SERVER__API_KEY": KEY, "NO_PROXY": "example.org"}
    odd = 'say "$HOME" \\ it\'s ü'
    done = launch(agents, name, "--url", keyless.base_url, "--", "-p", odd, **variables)
    assert done.returncode == 0, done.stderr
    call = only_call(agents)
    assert call.arguments[0] == name
    assert call.arguments[-2:] == ["-p", odd]
    assert keyless.base_url in json.dumps([call.arguments, call.environment])
    assert DEFAULT_MODEL in json.dumps([call.arguments, call.environment])
    assert call.environment["NO_PROXY"] == "example.org,127.0.0.1"
    assert ("ANTHROPIC_API_KEY" in call.environment) is (name != "claude")
    assert KEY not in done.stdout + done.stderr
    assert digests(tmp_path) == before


def digests(home: Path) -> dict[str, str]:
    """Returns the digest of every file that is neither the fake's nor a cache."""
    files = [path for path in home.rglob("*") if path.is_file() and "fake-" not in str(path)]
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if ".cache" not in path.parts
    }  # fmt: skip


def test_a_context_that_is_too_small_stops_a_launch_that_cannot_ask(agents: FakeCommands) -> None:
    with fake_service(FakeOptions(context_length=8192)) as small:
        load(small)
        done = ask(agents, "claude", "--url", small.base_url)
        assert done.returncode == 2
        assert "has a context of 8192 tokens, and agents need 32768 or more" in done.stderr
        printed = ask(agents, "claude", "--url", small.base_url, "--print")
        assert printed.returncode == 0
        assert "agents need 32768 or more" in printed.stderr
    assert not agents.calls()


def test_settings_are_printed_for_a_server_that_does_not_run(tmp_path: Path) -> None:
    unused = {"CAIRN_SERVER__PORT": "9", "CAIRN_ENGINE__BACKEND": "mlx"}
    done = run_here(tmp_path, "launch", "hermes", "--model", "cairn-demo", **unused)
    assert done.returncode == 0, done.stderr
    assert 'base_url: "http://127.0.0.1:9/v1"' in done.stdout
    assert "context_length: 8192" in done.stdout
    missing = run_here(tmp_path, "launch", "claude", "--print", "--model", "org/none", **unused)
    assert missing.returncode == 1
    assert "start the server first" in missing.stderr


def test_only_a_server_with_a_key_has_its_agent_get_one(
    keyless: FakeService, keyed: FakeService, agents: FakeCommands
) -> None:
    for service in (keyless, keyed):
        done = launch(agents, "claude", "--url", service.base_url, *key_argument(KEY))
        assert done.returncode == 0, done.stderr
        assert KEY not in done.stdout + done.stderr
    without, with_key = agents.calls()
    assert without.environment["ANTHROPIC_AUTH_TOKEN"] == NO_KEY
    assert with_key.environment["ANTHROPIC_AUTH_TOKEN"] == KEY
    assert KEY not in " ".join([*with_key.arguments, *without.arguments])
    assert KEY not in json.dumps(without.environment)


def test_a_missing_key_is_an_error(keyed: FakeService, agents: FakeCommands) -> None:
    done = ask(agents, "codex", "--url", keyed.base_url)
    assert (done.returncode, agents.calls()) == (1, [])
    assert "--api-key-file" in done.stderr


def test_what_is_printed_does_the_same_in_a_shell_and_holds_no_key(
    keyed: FakeService, agents: FakeCommands, tmp_path: Path
) -> None:
    printed = ask(agents, "claude", "--print", "--url", keyed.base_url, *key_argument(KEY), "--", "-p", "a 'b'")
    assert printed.returncode == 0, printed.stderr
    assert agents.calls() == []
    assert KEY not in printed.stdout
    assert f"export ANTHROPIC_AUTH_TOKEN={PLACEHOLDER}" in printed.stdout
    path = f"{agents.folder}:{os.environ['PATH']}"
    subprocess.run(["sh", "-c", printed.stdout], check=True, env={"PATH": path, "ANTHROPIC_API_KEY": "users"})
    launch(agents, "claude", "--url", keyed.base_url, *key_argument(KEY), "--", "-p", "a 'b'")
    shell, launched = agents.calls()
    assert shell.arguments == launched.arguments
    named = {name for name in shell.environment if name.startswith(("ANTHROPIC", "CLAUDE"))} - {"ANTHROPIC_AUTH_TOKEN"}
    assert len(named) > 8
    assert {name: shell.environment[name] for name in named} == {name: launched.environment[name] for name in named}


@pytest.mark.parametrize("name", ["cline", "continue", "zed", "aider", "goose", "qwen-code", "crush"])
def test_other_programs_have_their_settings_printed(keyed: FakeService, agents: FakeCommands, name: str) -> None:
    done = ask(agents, name, "--url", keyed.base_url, *key_argument(KEY))
    assert done.returncode == 0, done.stderr
    assert all(word in done.stdout for word in (keyed.base_url, DEFAULT_MODEL, PLACEHOLDER))
    assert KEY not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["claud"], 2, r"AGENT must be one that is known, not 'claud'; there are: claude$"),
        (["claude", "--model", "fake-atention"], 2, "--model must name a model that chats at .*, as fake-att"),
        (["codex", "--url", "http://127.0.0.1:1"], 1, r"no server answers at http://127\.0\.0\.1:1;"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(
    keyless: FakeService, agents: FakeCommands, arguments: list[str], status: int, message: str
) -> None:
    url = [] if "--url" in arguments else ["--url", keyless.base_url]
    done = ask(agents, *arguments, *url)
    assert (done.returncode, agents.calls()) == (status, [])
    assert re.search(message, done.stderr, re.MULTILINE), done.stderr


def test_a_missing_agent_is_named_with_its_installation(tmp_path: Path) -> None:
    done = run_here(tmp_path, "launch", "opencode", PATH=str(tmp_path))
    assert done.returncode == 1
    assert "opencode is not installed" in done.stderr
    assert "npm install -g opencode-ai" in done.stderr


def test_a_server_is_started_where_none_answers_and_goes_on(agents: FakeCommands, tmp_path: Path) -> None:
    port = free_port()
    server = {"CAIRN_SERVER__PORT": str(port), "CAIRN_ENGINE__BACKEND": "fake", "CAIRN_STORE__KIND": "off"}
    pid = 0
    try:
        first = launch(agents, "claude", "--model", "fake-hybrid", **server)
        pid = int((re.search(r"to stop it: kill (\d+)", first.stderr) or [0, 0])[1])
        assert first.returncode == 0, first.stderr
        assert "loading fake-hybrid" in first.stderr
        log = tmp_path / f".cache/cairn/server-{port}.log"
        assert log.stat().st_mode & 0o777 == 0o600
        second = launch(agents, "codex", **server)
        assert "starting one" not in second.stderr
        url = f"http://127.0.0.1:{port}"
        assert [url in json.dumps(call.environment) + json.dumps(call.arguments) for call in agents.calls()] == [
            True
        ] * 2
        assert 'model="fake-hybrid"' in agents.calls()[1].arguments  # the default of the server, not of the settings
        assert httpx.get(f"{url}/health/ready").is_success
    finally:
        if pid:
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda: not is_alive(pid), "the server to end")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def test_a_server_that_cannot_start_is_reported_with_its_log(agents: FakeCommands, tmp_path: Path) -> None:
    variables = {"CAIRN_SERVER__PORT": str(free_port()), "CAIRN_ENGINE__BACKEND": "fake", "CAIRN_STORE__KIND": "off"}
    done = launch(agents, "claude", "--model", "fake-atention", **variables)
    assert (done.returncode, agents.calls()) == (1, [])
    assert "near names: fake-attention" in done.stderr
    assert re.search(r"the server ended with status 1 before it was ready; its log: \S+/server-\d+\.log", done.stderr)
