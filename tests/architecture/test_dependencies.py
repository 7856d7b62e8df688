"""What the product imports is what it declares: a package that merely happens to be installed is a broken install."""

import ast
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
LAYERS = ("domain", "application", "adapters", "interfaces")


def declared_files() -> set[str]:
    """Every file of every declared distribution, relative to site-packages."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    files: set[str] = set()
    for name in {Requirement(line).name for line in lines}:
        try:
            files.update(str(file) for file in distribution(name).files or ())
        except PackageNotFoundError:
            continue  # for another platform
    return files


def foreign_imports(source: str) -> Iterator[str]:
    """Imported modules that are neither ours nor the standard library's."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] not in {*LAYERS, *sys.stdlib_module_names})


def is_provided(module: str, files: set[str]) -> bool:
    path = module.replace(".", "/")
    return any(file.startswith((f"{path}/", f"{path}.")) for file in files)


@pytest.fixture(scope="module")
def files() -> set[str]:
    return declared_files()


@pytest.mark.parametrize("layer", LAYERS)
def test_every_import_is_declared(layer: str, files: set[str]):
    missing = {
        f"{source.relative_to(ROOT)} imports {module}"
        for source in (ROOT / layer).rglob("*.py")
        for module in foreign_imports(source.read_text())
        if not is_provided(module, files)
    }
    assert missing == set()


def test_an_undeclared_import_would_be_found(files: set[str]):
    assert not is_provided("pytest", files)
    assert not is_provided("opentelemetry.instrumentation.django", files)
    assert list(foreign_imports("import os, pytest\nfrom domain import ids\nfrom mlx_lm.utils import load")) == [
        "pytest",
        "mlx_lm.utils",
    ]
