"""The protocol's reference servers, unmodified: of Python by both eras, of Node by the older one."""

import asyncio
import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from adapters.mcp.servers import McpToolServers
from application.mcp_settings import ToolServerSettings

MOST = 256 << 10
REFERENCE = {"everything": "2026.8.31", "filesystem": "2026.8.31", "memory": "2026.8.31"}


def using(work: Any, **servers: ToolServerSettings) -> None:
    async def run() -> None:
        found = McpToolServers(servers, MOST)
        try:
            await work(found)
        finally:
            await found.close()

    asyncio.run(run())


def module(name: str, *arguments: str) -> ToolServerSettings:
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    return ToolServerSettings(command=sys.executable, args=("-m", name, *arguments))


def test_the_time_server_tells_the_time() -> None:
    async def work(servers: McpToolServers) -> None:
        assert [tool.name for tool in await servers.tools("time")] == ["convert_time", "get_current_time"]
        result = await servers.call("time", "get_current_time", {"timezone": "Europe/Oslo"})
        assert json.loads(result.parts[0].text)["timezone"] == "Europe/Oslo"
        wrong = await servers.call("time", "get_current_time", {"timezone": "Nowhere"})
        assert wrong.is_error
        (status,) = servers.status()
        assert status.protocol == "2026-07-28"

    using(work, time=module("mcp_server_time"))


def test_the_git_server_reads_a_repository(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *command], check=True)

    async def work(servers: McpToolServers) -> None:
        result = await servers.call("git", "git_log", {"repo_path": str(tmp_path)})
        assert "first" in result.parts[0].text

    using(work, git=module("mcp_server_git", "--repository", str(tmp_path)))


@pytest.fixture(scope="session")
def node_servers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the reference servers of Node, from the package index."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path_factory.mktemp("node")
    packages = [f"@modelcontextprotocol/server-{name}@{version}" for name, version in REFERENCE.items()]
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *packages]
    try:
        subprocess.run(command, check=True, timeout=120, capture_output=True)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("the package index is not reached")
    return folder


@pytest.mark.slow
def test_the_reference_servers_of_node_speak_the_older_era(node_servers: Path, tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("written here")

    def server(name: str, *arguments: str, **env: str) -> ToolServerSettings:
        program = node_servers / "node_modules" / ".bin" / f"mcp-server-{name}"
        return ToolServerSettings(command=str(program), args=arguments, env=env)

    async def work(servers: McpToolServers) -> None:
        assert (await servers.call("everything", "echo", {"message": "hello"})).parts[0].text == "Echo: hello"
        image = await servers.call("everything", "get-tiny-image", {})
        assert next(part.image for part in image.parts if part.image).startswith(b"\x89PNG")
        environment = await servers.call("everything", "get-env", {})
        assert "CAIRN" not in environment.parts[0].text
        read = await servers.call("filesystem", "read_text_file", {"path": str(tmp_path / "note.txt")})
        assert read.parts[0].text == "written here"
        outside = await servers.call("filesystem", "read_text_file", {"path": "/etc/hostname"})
        assert outside.is_error
        assert (await servers.call("memory", "read_graph", {})).is_error is False
        assert {status.protocol for status in servers.status()} == {"2025-11-25"}

    using(
        work,
        everything=server("everything"),
        filesystem=server("filesystem", str(tmp_path)),
        memory=server("memory", MEMORY_FILE_PATH=str(tmp_path / "memory.json")),
    )
