"""The settings of tool servers: programs and services that offer tools by the Model Context Protocol."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from domain.byte_size import ByteSize
from domain.errors import require
from domain.host_name import address_of, bare_host
from domain.tool_server_names import is_server_name

ALWAYS: Final = "always"
NEVER: Final = "never"
NAME_FORM = "a name has 1 to 64 letters, digits, - or _, no __, and does not end with _"

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_OWN_HEADERS = frozenset({"host", "connection", "content-length", "content-type", "transfer-encoding", "accept"})


@dataclass(frozen=True, slots=True)
class ToolServerSettings:
    """A server of tools, the table `[mcp.servers.NAME]`: a program (`command`, `args`, `env`) or a service (`url`,
    `headers`).

    `env` and `headers` may refer to variables of Cairn's own environment as ${NAME}; the program inherits nothing else
    but HOME, LOGNAME, PATH, SHELL, TERM, USER. `tools`: names of those that may be used, empty for all. `approval`:
    always or never. `timeout_s`: of one call. `enabled`: false leaves it out."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    tools: tuple[str, ...] = ()
    approval: str = ALWAYS
    timeout_s: float = 30.0
    enabled: bool = True

    def __post_init__(self) -> None:
        require(bool(self.command) != bool(self.url), "command", "or url must be given, and not both")
        is_plain = "\0" not in self.command and ("/" not in self.command or self.command.startswith("/"))
        # A relative path would run what lies in the folder that the server happens to be started in.
        require(is_plain, "command", "must be the name of a program in PATH, or an absolute path")
        require(not self.url or not (self.args or self.env), "args", "and env belong to command, not to url")
        require(not self.command or not self.headers, "headers", "belong to url, not to command")
        require(not any("\0" in one for one in self.args), "args", "must not hold a zero character")
        for name, value in self.env.items():
            require(_VARIABLE.fullmatch(name) is not None, "env", "must have names of letters, digits and _")
            require("\0" not in value, "env", f"has a zero character in {name}")
        for name, value in self.headers.items():
            is_free = name.lower() not in _OWN_HEADERS and not name.lower().startswith("mcp-")
            require(_HEADER.fullmatch(name) is not None and is_free, "headers", "must have names of free headers")
            is_plain = _CONTROL.search(value) is None and value.isascii()
            require(is_plain, "headers", f"has a control character, or one beyond ASCII, in {name}")
        if self.url:
            _check_url(self.url, is_secret=bool(self.headers))
        require(self.approval in (ALWAYS, NEVER), "approval", "must be always or never")
        require(0.1 <= self.timeout_s <= 3600, "timeout_s", "must be in 0.1..3600 seconds")
        require(all(self.tools), "tools", "must not hold an empty name")

    @property
    def transport(self) -> str:
        return "stdio" if self.command else "http"


def _check_url(url: str, *, is_secret: bool) -> None:
    """Raises InvalidRequest. `is_secret`: its requests have headers, which hold a key as a rule."""
    form = "must be like https://HOST/PATH, without a user, a password and a fragment"
    require(_CONTROL.search(url) is None and " " not in url, "url", form)
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        host, parts = "", urlsplit("")
    require(parts.scheme in ("http", "https") and bool(host), "url", form)
    require("@" not in parts.netloc and not parts.fragment, "url", form)
    address = address_of(host)
    is_near = host == "localhost" if address is None else address.is_loopback
    require(
        parts.scheme == "https" or is_near or not is_secret, "url", "must be https: headers would be sent in the clear"
    )


@dataclass(frozen=True, slots=True)
class McpSettings:
    """The servers of tools, and the limits of their use. None by default.

    `config`: a file with more servers in the common form (`mcpServers` or `servers`). `request_hosts`: hosts that a
    request may name as a server of its own, none by default; `request_approval`: the rule for their calls. `max_steps`,
    `max_calls`: of one response. `max_result`: the bytes of one result."""

    servers: Mapping[str, ToolServerSettings] = field(default_factory=dict[str, ToolServerSettings])
    config: str = ""
    request_hosts: tuple[str, ...] = ()
    request_approval: str = ALWAYS
    max_steps: int = 10
    max_calls: int = 32
    max_result: ByteSize = ByteSize(num_bytes=256 * 2**10)

    def __post_init__(self) -> None:
        for name in self.servers:
            require(is_server_name(name), "mcp.servers", f"has the name {name!r}: {NAME_FORM}")
        # A relative path would be looked for in the folder that the server is started in, where anybody may plant it.
        require(self.config[:1] in ("", "/", "~"), "mcp.config", "must be an absolute path, or begin with ~/")
        for host in self.request_hosts:
            plain = "must be host names in lower case, without scheme and port"
            require(bare_host(host) == host, "mcp.request_hosts", plain)
        require(self.request_approval in (ALWAYS, NEVER), "mcp.request_approval", "must be always or never")
        require(1 <= self.max_steps <= 100, "mcp.max_steps", "must be in 1..100")
        require(1 <= self.max_calls <= 1000, "mcp.max_calls", "must be in 1..1000")
        size = self.max_result.num_bytes
        require(size is not None and 1024 <= size <= 64 << 20, "mcp.max_result", "must be in 1KiB..64MiB")

    @property
    def enabled(self) -> Mapping[str, ToolServerSettings]:
        """The servers that are not left out."""
        return {name: one for name, one in self.servers.items() if one.enabled}
