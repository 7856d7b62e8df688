"""The promises of the README: settings load, snippets compile, targets are there. The rest: test_docs.py."""

import re
import subprocess
from pathlib import Path

from adapters.config.loader import load_settings
from domain.byte_size import ByteSize
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_configuration_loads(tmp_path: Path):
    (toml,) = blocks("toml")
    (tmp_path / "config.toml").write_text(toml)
    settings = load_settings({"CAIRN_CONFIG": str(tmp_path / "config.toml")}).settings
    assert settings.server.port == 9000
    assert settings.store.quota == ByteSize(num_bytes=200 * 2**30)


def test_the_variables_are_known():
    named = re.findall(r"`(CAIRN_\w+__\w+)=(\w+)`", README)
    assert named
    load_settings(dict(named) | {"CAIRN_CONFIG": "/dev/null"})


def test_the_code_compiles():
    for code in blocks("python"):
        compile(code, "README.md", "exec")


def test_targets_exist():
    named = set(re.findall(r"make ([a-z-]+)", README)) - {"them"}
    reported = subprocess.run(
        ["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert {"serve", "test", "check"} <= named
    assert [target for target in named if f"  make {target} " not in reported.stdout] == []
