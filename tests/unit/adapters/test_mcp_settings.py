"""Tool servers in the settings: tables of the configuration file, and files in the common form."""

import json
from pathlib import Path

import pytest

from adapters.config.loader import Flag, InvalidSettings, LoadedSettings, load_settings, shown_settings
from adapters.config.toml_text import difference
from application.settings import McpSettings, ToolServerSettings

TIME = {"command": "mcp-server-time"}


class Folder:
    """`HOME` of a server, with its configuration file and a file of tool servers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "mcp.json"

    def load(self, text: str = "", **variables: str) -> LoadedSettings:
        return load_settings({"HOME": str(self.path), **variables}, {}, text)

    def load_file(self, content: object, text: str = "") -> LoadedSettings:
        self.file.write_text(content if isinstance(content, str) else json.dumps(content))
        self.file.chmod(0o600)
        return self.load(text, CAIRN_MCP__CONFIG=str(self.file))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def test_a_table_is_a_server(folder: Folder) -> None:
    text = """
    [mcp]
    max_steps = 3
    [mcp.servers.git]
    command = "/usr/bin/git-server"
    args = ["--all"]
    approval = "never"
    timeout_s = 5
    env = {TOKEN = "${GIT_TOKEN}"}
    [mcp.servers.web]
    url = "https://tools.example/mcp"
    enabled = false
    [mcp.servers.web.headers]
    Authorization = "Bearer ${WEB}"
    """
    mcp = folder.load(text).settings.mcp
    assert mcp.servers["git"] == ToolServerSettings(
        "/usr/bin/git-server", ("--all",), {"TOKEN": "${GIT_TOKEN}"}, approval="never", timeout_s=5.0
    )
    assert mcp.servers["web"].headers == {"Authorization": "Bearer ${WEB}"}
    assert (list(mcp.enabled), mcp.max_steps, folder.load().settings.mcp) == (["git"], 3, McpSettings())


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ('command = "x"\nurl = "https://h/x"', "mcp.servers.a.command or url"),
        ("", "mcp.servers.a.command or url"),
        ('command = "./x"', "mcp.servers.a.command must be the name"),
        ('command = "x"\ncwd = "/"', "mcp.servers.a.cwd is not a setting"),
        ('command = "x"\nargs = "y"', "mcp.servers.a.args must be a list of texts"),
        ('command = "x"\napproval = "ask"', "mcp.servers.a.approval must be always or never"),
        ('command = "x"\ntimeout_s = 60000', "mcp.servers.a.timeout_s must be in"),
        ('command = "x"\nenv = {"A B" = "c"}', "mcp.servers.a.env must have names"),
        ('command = "x"\nheaders = {A = "c"}', "mcp.servers.a.headers belong to url"),
        ('url = "file:///etc/passwd"', "mcp.servers.a.url must be like"),
        ('url = "https://user:secret@h/x"', "mcp.servers.a.url must be like"),
        ('url = "https://h/x y"', "mcp.servers.a.url must be like"),
        ('url = "https://h:99999/"', "mcp.servers.a.url must be like"),
        ('url = "http://h/x"\nheaders = {A = "secret"}', "mcp.servers.a.url must be https"),
        ('url = "https://h/x"\nheaders = {Host = "i"}', "mcp.servers.a.headers must have names"),
        ('url = "https://h/x"\nheaders = {A = "b\\r\\nC: secret"}', "mcp.servers.a.headers has a control character"),
        ('command = "x"\nenv = {A = 1, B = "secret"}', "mcp.servers.a.env must be a table of texts"),
    ],
)
def test_an_error_has_the_path_of_what_is_wrong_and_no_secret(folder: Folder, table: str, found: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        folder.load(f"[mcp.servers.a]\n{table}")
    assert found in error.value.message
    assert "secret" not in error.value.message


@pytest.mark.parametrize("name", ["a__b", "a_", "a b", "x" * 65, "ä", ""])
def test_a_name_could_not_be_taken_for_another_servers_tool(folder: Folder, name: str) -> None:
    with pytest.raises(InvalidSettings, match=r"mcp\.servers has the name"):
        folder.load(f'[mcp.servers."{name}"]\ncommand = "x"')


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('config = "mcp.json"', "mcp.config must be an absolute path"),
        ('config = "/none/mcp.json"', "cannot be read: No such file or directory (/none/mcp.json)"),
        ('request_hosts = ["https://h"]', "mcp.request_hosts must be host names"),
        ('request_hosts = ["Tools.example"]', "mcp.request_hosts must be host names"),
        ('request_approval = "sometimes"', "mcp.request_approval must be always or never"),
        ("max_steps = 0", "mcp.max_steps must be in"),
        ("max_calls = true", "mcp.max_calls must be a whole number"),
        ('max_result = "50%"', "mcp.max_result must be in"),
        ("servers = 1", "mcp.servers must be a table"),
        ("server = {}", "mcp.server is not a setting"),
    ],
)
def test_the_section_is_checked(folder: Folder, text: str, found: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        folder.load(f"[mcp]\n{text}")
    assert found in error.value.message


def test_a_relative_path_is_that_of_a_planted_file(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.path)
    for name in ("mcp.json", ".mcp.json", "config.toml"):
        (folder.path / name).write_text(json.dumps({"mcpServers": {"planted": TIME}}))
    assert not folder.load().settings.mcp.servers
    for variables in ({"CAIRN_MCP__CONFIG": "mcp.json"}, {"CAIRN_MCP__CONFIG": "./mcp.json"}):
        with pytest.raises(InvalidSettings, match="absolute path"):
            folder.load(**variables)


@pytest.mark.parametrize("section", ["servers", "mcpServers"])
def test_a_file_in_the_common_form_adds_servers(folder: Folder, section: str) -> None:
    content = {
        "default_timeout": 7,
        section: {
            "fs": {"command": "npx", "args": ["-y", "fs"], "env": {"A": "b"}, "name": "inner", "timeout": 5},
            "web": {"type": "streamable-http", "url": "https://h.example/mcp", "disabled": True},
            "old": {"transport": "stdio", "command": "old", "enabled": True},
        },
    }
    servers = folder.load_file(content, '[mcp.servers.own]\ncommand = "own"').settings.mcp.servers
    assert servers == {
        "own": ToolServerSettings("own"),
        "fs": ToolServerSettings("npx", ("-y", "fs"), {"A": "b"}, timeout_s=5.0),
        "web": ToolServerSettings(url="https://h.example/mcp", timeout_s=7.0, enabled=False),
        "old": ToolServerSettings("old", timeout_s=7.0),
    }


def test_servers_are_taken_before_mcp_servers(folder: Folder) -> None:
    content = {"mcpServers": {"b": TIME}, "servers": {"a": TIME}}
    assert list(folder.load_file(content).settings.mcp.servers) == ["a"]
    assert not folder.load_file({}).settings.mcp.servers


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("mcpServers: {}", "line 1 is not valid JSON"),
        ("[" * 100_000, "the file"),
        ("[]", "the file must be an object"),
        ('{"mcpServers": {"a": {}, "a": {}}}', "a is given twice"),
        ({"inputs": []}, "inputs is not a key"),
        ({"mcpServers": []}, "mcpServers must be an object"),
        ({"mcpServers": {"a": "x"}}, "mcpServers.a must be an object"),
        ({"servers": {"a": {**TIME, "cwd": "secret"}}}, "servers.a.cwd is not a key of a server"),
        ({"servers": {"a": {**TIME, "type": "sse"}}}, "servers.a.type must be stdio, http"),
        ({"servers": {"a": {**TIME, "type": "http"}}}, "servers.a.url must be given: type is http"),
        ({"servers": {"a": {**TIME, "type": ["stdio"]}}}, "servers.a.type must be"),
        ({"servers": {"a": {"env": {}}}}, "servers.a.url must be given"),
        ({"servers": {"a": {**TIME, "timeout": 0}}}, "servers.a.timeout must be in"),
        ({"servers": {"a": {**TIME, "timeout": True}}}, "servers.a.timeout must be in"),
        ({"default_timeout": -1}, "default_timeout must be in"),
        ({"servers": {"a": {**TIME, "disabled": "no"}}}, "servers.a.disabled must be true or false"),
        ({"servers": {"a": {**TIME, "env": {"A": 1}}}}, "mcp.servers.a.env must be a table of texts"),
        ({"servers": {"a": {**TIME, "command": "./secret"}}}, "mcp.servers.a.command must be the name"),
        ({"servers": {"a__b": TIME}}, "servers has the name"),
        ({"servers": {"own": TIME}}, "the server own is in the configuration file too"),
    ],
)
def test_an_error_of_a_file_names_it_and_the_key(folder: Folder, content: object, found: str) -> None:
    with pytest.raises(InvalidSettings) as error:
        folder.load_file(content, '[mcp.servers.own]\ncommand = "own"')
    assert found in error.value.message
    assert str(folder.file) in error.value.message
    assert "secret" not in error.value.message


def test_a_file_that_everybody_may_write_is_refused(folder: Folder) -> None:
    folder.load_file({"servers": {"a": TIME}})
    folder.file.chmod(0o602)
    with pytest.raises(InvalidSettings, match="everybody may write"):
        folder.load(CAIRN_MCP__CONFIG=str(folder.file))


def test_shown_settings_name_servers_and_their_file_and_hide_secrets(folder: Folder) -> None:
    content = {"servers": {"web": {"url": "https://h.example/mcp", "headers": {"A": "the secret"}}}}
    loaded = folder.load_file(content, '[mcp.servers.own]\ncommand = "own"\nenv = {A = "the secret"}')
    shown = {one.path: one for one in shown_settings(loaded.settings, loaded.origins, "config.toml")}
    assert (shown["mcp.servers.own.env"].value, shown["mcp.servers.own.env"].source) == ("set", "config.toml")
    assert (shown["mcp.servers.web.headers"].value, shown["mcp.servers.web.headers"].source) == (
        "set",
        str(folder.file),
    )
    assert "the secret" not in str(shown)


def test_a_difference_of_texts_hides_the_secrets_of_servers() -> None:
    new = '[mcp.servers.a]\ncommand = "x"\nenv = {A = "the secret"}\n[mcp.servers.b.headers]\nC = "the secret"\n'
    shown = difference("", new)
    assert "the secret" not in shown
    assert 'command = "x"' in shown


def test_a_flag_names_a_file(folder: Folder) -> None:
    folder.load_file({"servers": {"a": TIME}})
    loaded = load_settings({"HOME": "/"}, {"mcp.config": Flag("--mcp-config", str(folder.file))}, "")
    assert list(loaded.settings.mcp.servers) == ["a"]
