"""The Homebrew formula that deploy/homebrew.py writes: complete, pinned, and Ruby where there is one to ask."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from deploy.homebrew import TARGET, closure, constraints, render

ROOT = Path(__file__).parents[3]
SDIST = "https://example.org/cairn_mlx-0.1.0.tar.gz"
FORMULA = render(SDIST, "0" * 64, "https://example.org/cairn")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_it_pins_what_cairn_needs_on_a_mac_and_nothing_else() -> None:
    needed = [Requirement(line) for line in PROJECT["project"]["dependencies"]]
    names = {canonicalize_name(one.name) for one in needed if one.marker is None or one.marker.evaluate(TARGET)}
    pinned = dict(re.findall(r"^    (\S+)==(\S+)$", FORMULA, re.MULTILINE))
    assert names <= pinned.keys()
    assert {"mlx", "mlx-metal"} <= pinned.keys()
    assert pinned.items() <= constraints().items()
    tools = {canonicalize_name(Requirement(line).name) for line in PROJECT["dependency-groups"]["test"]}
    assert not (tools | {"mlx-cpu", "mlx-cuda-13"}) & pinned.keys()


def test_hashes_are_demanded_where_they_are_known() -> None:
    hashes = dict.fromkeys(closure(), "a" * 64)
    lines = re.findall(
        r"^    \S+==\S+ --hash=sha256:a{64}$", render(SDIST, "0" * 64, "https://x.org", hashes), re.MULTILINE
    )
    assert len(lines) == len(closure())


@pytest.mark.parametrize("url", ['https://x.org/"; system "x', "https://x.org/#{1}", "a\nb", ""])
def test_an_address_cannot_leave_its_quotes(url: str) -> None:
    with pytest.raises(SystemExit, match="must be without"):
        render(url, "0" * 64, "https://x.org")


@pytest.mark.skipif(shutil.which("ruby") is None, reason="Ruby is not here")
def test_ruby_reads_it(tmp_path: Path) -> None:
    (tmp_path / "cairn-mlx.rb").write_text(FORMULA)
    subprocess.run(["ruby", "-wc", str(tmp_path / "cairn-mlx.rb")], check=True, capture_output=True)


@pytest.mark.skipif(shutil.which("brew") is None, reason="Homebrew is not here")
def test_homebrew_audits_it(tmp_path: Path) -> None:
    formula = tmp_path / "Formula" / "cairn-mlx.rb"
    formula.parent.mkdir()
    formula.write_text(FORMULA)
    done = subprocess.run(["brew", "style", str(formula)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
