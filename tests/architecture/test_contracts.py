"""Every import contract holds, and every one catches what it forbids: a violation is planted in a copy of the tree."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = ("domain", "application", "adapters", "interfaces")
LINT_IMPORTS = Path(sys.executable).with_name("lint-imports")

PLANTED: list[tuple[str, dict[str, str]]] = [
    ("hexagon", {"domain/planted.py": "import application.settings"}),
    ("hexagon", {"application/planted.py": "import adapters.system.clock"}),
    ("hexagon", {"adapters/system/planted.py": "import interfaces.http"}),
    ("hexagon", {"interfaces/http/planted.py": "import adapters.system.clock"}),
    ("hexagon", {"interfaces/http/planted.py": "import interfaces.composition"}),
    ("hexagon", {"interfaces/composition/planted.py": "import interfaces.cli"}),
    ("application-inner", {"application/ports/planted.py": "import application.services"}),
    ("application-inner", {"application/services/planted.py": "import application.use_cases"}),
    ("application-inner", {"application/extra/__init__.py": ""}),
    ("text-side-knows-the-port", {"application/use_cases/planted.py": "import application.services.token_side"}),
    ("text-side-knows-the-port", {"application/use_cases/planted.py": "import application.services.prefix.cache"}),
    ("text-side-knows-the-port", {"application/services/text_side/planted.py": "import application.ports.compute"}),
    ("text-side-knows-the-port", {"application/services/text_side/planted.py": "import application.ports.block_store"}),
    ("text-side-knows-the-port", {"interfaces/http/planted.py": "import application.services.prefix.cache"}),
    (
        "token-side-knows-no-text",
        {"application/services/token_side/planted.py": "import application.use_cases"},
    ),
    ("token-side-knows-no-text", {"application/services/prefix/planted.py": "import application.services.text_side"}),
    ("adapters-independent", {"adapters/system/planted.py": "import adapters.memory"}),
    (
        "dialects-independent",
        {"interfaces/http/native/planted.py": "from interfaces.http.openai.chat import Delta"},
    ),
    ("dialects-independent", {"interfaces/http/openai/planted.py": "import interfaces.http.native.cache"}),
    ("dialects-independent", {"interfaces/http/native/planted.py": "from interfaces.http.dialects import DIALECTS"}),
    ("core-is-pure", {"domain/planted.py": "import mlx.core"}),
    ("core-is-pure", {"application/services/planted.py": "from opentelemetry import trace"}),
    ("mlx-at-home", {"interfaces/http/planted.py": "import mlx.core as mx"}),
    ("mlx-at-home", {"adapters/memory/planted.py": "import mlx.core as mx"}),
    ("lmdb-at-home", {"adapters/memory/planted.py": "import lmdb"}),
    ("zstd-at-home", {"adapters/lmdb/planted.py": "import zstandard"}),
    ("resp-at-home", {"adapters/memory/planted.py": "import valkey"}),
    ("zmq-at-home", {"adapters/resp/planted.py": "import zmq"}),
    ("grammars-at-home", {"adapters/mlx/planted.py": "import llguidance"}),
    ("pixels-at-home", {"adapters/tokenizers/planted.py": "from PIL import Image"}),
    ("pdf-at-home", {"adapters/pillow/planted.py": "import pypdf"}),
    ("telemetry-at-home", {"interfaces/http/planted.py": "from opentelemetry import trace"}),
    ("telemetry-at-home", {"application/planted.py": "import prometheus_client"}),
    ("hub-at-home", {"adapters/tokenizers/planted.py": "from huggingface_hub import constants"}),
    ("container-at-home", {"interfaces/cli/planted.py": "from dependency_injector import providers"}),
    ("http-at-home", {"adapters/otel/planted.py": "import litestar"}),
    ("encoding-at-home", {"adapters/config/planted.py": "import msgspec"}),
    ("http-at-home", {"interfaces/cli/planted.py": "import uvicorn"}),
    ("terminal-at-home", {"interfaces/composition/planted.py": "import typer"}),
    ("terminal-at-home", {"adapters/system/planted.py": "from rich.console import Console"}),
    (
        "no-cycles",
        {"domain/planted.py": "import domain.planted_too", "domain/planted_too.py": "import domain.planted"},
    ),
]


def contracts() -> dict[str, str]:
    """Contract names by id."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    return {table["id"]: table["name"] for table in tables}


def lint(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT_IMPORTS, *arguments], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )


def test_contracts_are_kept():
    result = lint(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_every_contract_has_a_planted_violation():
    assert {contract for contract, _ in PLANTED} == set(contracts())


def test_every_dialect_is_independent():
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (table for table in tables if table["id"] == "dialects-independent")
    folders = {init.parent.name for init in (ROOT / "interfaces/http").glob("*/__init__.py")}
    folders -= {"answering", "fields", "front", "incoming"}  # what dialects are built on
    assert {f"interfaces.http.{folder}" for folder in folders} == set(contract["modules"])


def numbered(number: int, text: str) -> str:
    return text.replace("planted", f"planted{number}").replace("/extra/", f"/planted{number}/")


@pytest.fixture(scope="module")
def sections(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns the outcome of each contract by its name, of one run in which every violation is planted at once."""
    root = tmp_path_factory.mktemp("tree")
    for layer in LAYERS:
        for source in (ROOT / layer).rglob("*.py"):
            target = root / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    shutil.copyfile(ROOT / "pyproject.toml", root / "pyproject.toml")
    for number, (_, sources) in enumerate(PLANTED):
        for path, source in sources.items():
            planted = root / numbered(number, path)
            planted.parent.mkdir(exist_ok=True)
            planted.write_text(numbered(number, source) + "\n")
    result = lint(root)
    assert result.returncode == 1, result.stdout + result.stderr
    _, _, broken = result.stdout.partition("Broken contracts")
    names = "|".join(re.escape(name) for name in contracts().values())
    _, *parts = re.split(rf"^({names})$", broken, flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


@pytest.mark.parametrize("number", range(len(PLANTED)))
def test_planted_violation_is_caught(sections: dict[str, str], number: int):
    contract, sources = PLANTED[number]
    assert re.search(rf"\bplanted{number}\b", sections.get(contracts()[contract], "")), sources
