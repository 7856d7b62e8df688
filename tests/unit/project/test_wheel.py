"""The wheel adds one name to site-packages, `cairn`, and runs from there."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
PACKAGES = ("cairn", "domain", "application", "adapters", "interfaces")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the installed files of the wheel, without the embedded models, which take long to compress."""
    folder = tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.safetensors", "__pycache__"))
    for file in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copyfile(ROOT / file, folder / file)
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site-packages")
    return folder / "site-packages"


def run(installed: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code that finds the unpacked wheel and what Cairn depends on, and nothing of this checkout."""
    libraries = [entry for entry in sys.path if entry.endswith("site-packages")]
    unpacked = f"import sys; sys.path[:0] = [{str(installed)!r}]; sys.path += {libraries!r}; "
    command = [sys.executable, "-S", "-P", "-c", unpacked + code]
    return subprocess.run(command, cwd=installed, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def test_site_packages_gains_one_package_without_tests(installed: Path):
    assert {entry.name for entry in installed.iterdir() if not entry.name.endswith(".dist-info")} == {"cairn"}
    assert not list(installed.rglob("test_*"))


def test_the_layers_are_importable_through_cairn_only(installed: Path):
    alone = run(installed, "import domain")
    assert "No module named 'domain'" in alone.stderr
    through = run(installed, "import cairn; print(cairn.Settings.__module__, sys.modules['application'].__file__)")
    assert through.stdout.startswith(f"application.settings {installed}/cairn/_app/"), through.stderr


def test_the_command_and_its_child_processes_run_from_the_wheel(installed: Path):
    code = """
from cairn.__main__ import main
from application.installation import child_environment
import subprocess
child = [sys.executable, "-P", "-c", "import domain; print(domain.__file__)"]
print(subprocess.run(child, env=child_environment(), capture_output=True, text=True).stdout)
sys.argv = ["cairn", "--help"]
main()
"""
    done = run(installed, f"exec({code!r})")
    assert done.returncode == 0, done.stderr
    assert f"{installed}/cairn/_app/domain" in done.stdout
    assert "serve" in done.stdout


def test_an_unknown_public_name_is_an_attribute_error():
    import cairn

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cairn.nothing
