"""Every command that docs/operations.md states does what it says there: on a running server and a store on disk."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.options import FakeOptions
from adapters.fake.tokenizer import FakeTokenizers
from application.settings import ServerSettings, Settings, StoreSettings
from interfaces.cli.main import app
from interfaces.composition.backends import Backend
from tests.support.http.servers.live_service import live_service
from tests.support.patience import PATIENCE_S
from tests.support.processes.cache_cli import isolate, make_store
from tests.support.stores.two_models import content

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs/operations.md").read_text()
ADDRESS = "http://127.0.0.1:8000"


def commands() -> list[str]:
    """The commands of the blocks and of the last table."""
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.DOTALL | re.MULTILINE)
    night = GUIDE[GUIDE.index("| symptom | command |") :]
    asked = [line for block in blocks for line in block.splitlines()]
    asked += re.findall(r"\| `((?:cairn|curl) [^`]+)` \|", night)
    return list(dict.fromkeys(asked))


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a server with default settings on the toy engine."""
    options = FakeOptions(eos_every=0)
    backend = Backend(
        lambda: FakeEngine(default=options), FakeModels(("cairn-demo",)), FakeTokenizers(), default_grid=256
    )
    settings = Settings(server=ServerSettings(port=0), store=StoreSettings(kind="memory"))
    with live_service(settings, backend=backend) as running:
        yield running.base_url


@pytest.fixture
def there(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The surroundings of an operator: settings that name a server and a store, a request. Returns the id of an
    answer."""
    isolate(tmp_path, monkeypatch)
    monkeypatch.chdir(tmp_path)
    make_store(tmp_path / "store", content())
    monkeypatch.setenv("CAIRN_STORE__DIR", str(tmp_path / "store"))
    monkeypatch.setenv("CAIRN_SERVER__PORT", address.rpartition(":")[2])
    request = {"messages": [{"role": "user", "content": "Is it Monday?"}], "max_tokens": 2}
    (tmp_path / "request.json").write_text(json.dumps(request))
    assert CliRunner().invoke(app, ["keys", "add", "ci", "--file", str(tmp_path / "keys")]).exit_code == 0
    monkeypatch.setenv("CAIRN_SERVER__KEY_FILE", str(tmp_path / "keys"))
    return str(httpx.post(f"{address}/v1/chat/completions", json=request, timeout=PATIENCE_S).json()["id"])


def test_every_command_works(address: str, there: str) -> None:
    asked = commands()
    assert len(asked) >= 14
    for line in asked:
        words = [word.replace("REQUEST_ID", there) for word in shlex.split(line.replace(ADDRESS, address))]
        if words[0] == "curl":
            assert httpx.get(words[-1], timeout=PATIENCE_S).status_code == 200, line
            continue
        assert words[0] == "cairn", line
        result = CliRunner().invoke(app, words[1:])
        # How much room and which versions there are is up to the machine that tests it.
        allowed = (0, 1) if words[1] == "doctor" else (0,)
        assert result.exit_code in allowed, f"{line}\n{result.output}\n{result.exception!r}"
        assert result.stdout, line
