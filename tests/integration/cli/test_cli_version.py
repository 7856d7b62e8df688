"""`cairn version` asks an index for releases with `--check` only."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from application.installation import DISTRIBUTION, installed_version
from interfaces.cli.commands.version import upgrade_command
from tests.support.processes.cli_process import run_here
from tests.support.processes.fake_commands import FakeCommands


@contextmanager
def index(releases: list[str], asked: list[str]) -> Iterator[str]:
    """A package index on a loopback socket, which notes the paths that it is asked for."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_args: object) -> None:
            pass

        def do_GET(self) -> None:
            asked.append(self.path)
            names = [f"{DISTRIBUTION.replace('-', '_')}-{release}-py3-none-any.whl" for release in releases]
            body = "".join(f'<a href="{name}">{name}</a>' for name in names).encode()
            self.send_response(200 if DISTRIBUTION in self.path and names else 404)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def version(home: Path, url: str, *arguments: str) -> tuple[int, str, str]:
    variables = {"PIP_INDEX_URL": url, "PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "0", "PIP_FIND_LINKS": ""}
    done = run_here(home, "version", *arguments, NO_PROXY="127.0.0.1", PIP_RETRIES="0", **variables)
    return done.returncode, done.stdout, done.stderr


def test_nothing_is_asked_without_the_flag(tmp_path: Path) -> None:
    asked: list[str] = []
    with index(["99.0"], asked) as url:
        assert version(tmp_path, url) == (0, f"cairn {installed_version()}\n", "")
    assert asked == []


@pytest.mark.skipif(installed_version() == "0", reason="Cairn is not installed here")
def test_a_newer_release_is_named_with_its_command(tmp_path: Path) -> None:
    asked: list[str] = []
    with index(["98.0", "99.0"], asked) as url:
        status, text, errors = version(tmp_path, url, "--check")
    assert (status, errors) == (0, "")
    assert text.splitlines()[1].startswith("the newest release is 99.0; to install it: ")
    assert asked == [f"/simple/{DISTRIBUTION}/"]
    with index([installed_version()], asked) as url:
        assert version(tmp_path, url, "--check")[1].splitlines()[1] == "this is the newest release"


def test_an_index_without_a_release_is_an_error(tmp_path: Path) -> None:
    with index([], []) as url:
        status, _, errors = version(tmp_path, url, "--check")
    assert status == 1
    assert errors.startswith(f"cairn: the package index did not name a release of {DISTRIBUTION}: ")


@pytest.mark.parametrize(
    ("prefix", "command"),
    [
        ("/opt/homebrew/opt/cairn-mlx/libexec/venv", "brew upgrade cairn-mlx"),
        ("/home/me/.local/share/uv/tools/cairn-mlx", "uv tool upgrade cairn-mlx"),
        ("/home/me/.local/share/pipx/venvs/cairn-mlx", "pipx upgrade cairn-mlx"),
        ("/home/me/cairn/.venv", "pip install --upgrade cairn-mlx"),
    ],
)
def test_each_installation_has_its_command(prefix: str, command: str) -> None:
    assert upgrade_command(prefix) == command


def test_uv_is_asked_where_there_is_no_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from interfaces.cli.commands import version as module
    from interfaces.cli.main import app

    uv = FakeCommands(tmp_path)
    uv.add("uv", {"compile": f"{DISTRIBUTION}==99.0\n"})
    monkeypatch.setenv("PATH", str(uv.folder))
    monkeypatch.setattr(module, "find_spec", lambda _name: None)
    assert "the newest release is 99.0" in CliRunner().invoke(app, ["version", "--check"]).stdout
    assert uv.words() == ["uv pip compile --quiet --no-deps --no-header --no-annotate -"]
