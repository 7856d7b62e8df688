"""Every imported package is declared: one that merely happens to be installed is a broken install.

`make serve` installs the project's dependencies, `make test` the group `test` as well, and nothing else.
"""

import ast
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, distribution, entry_points
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LAYERS = ("domain", "application", "adapters", "interfaces")
OURS = (*LAYERS, "cairn", "tests", "bench", "training", "deploy")


def declared(*groups: str) -> set[str]:
    """Names of the distributions that the project and these dependency groups declare."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = tables["project"]
    lines = project["dependencies"] + [line for extra in project["optional-dependencies"].values() for line in extra]
    lines += [line for group in groups for line in tables["dependency-groups"][group]]
    return {Requirement(line).name for line in lines}


def files_of(names: Iterable[str]) -> set[str]:
    """Every file of every one of these distributions, relative to site-packages."""
    files: set[str] = set()
    for name in names:
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
        yield from (name for name in names if name.split(".")[0] not in {*OURS, *sys.stdlib_module_names})


def is_provided(module: str, files: set[str]) -> bool:
    path = module.replace(".", "/")
    return any(file.startswith((f"{path}/", f"{path}.")) for file in files)


@pytest.fixture(scope="module")
def files() -> set[str]:
    return files_of(declared())


@pytest.mark.parametrize("layer", LAYERS)
def test_every_import_is_declared(layer: str, files: set[str]):
    assert undeclared(layer, files) == set()


def undeclared(folder: str, files: set[str]) -> set[str]:
    return {
        f"{source.relative_to(ROOT)} imports {module}"
        for source in (ROOT / folder).rglob("*.py")
        for module in foreign_imports(source.read_text())
        if not is_provided(module, files)
    }


def with_what_they_need(names: Iterable[str]) -> set[str]:
    """These distributions and, through all levels, those that they require here."""
    found, waiting = set[str](), list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found.add(name)
        try:
            required = [Requirement(line) for line in distribution(name).requires or ()]
        except PackageNotFoundError:
            continue  # for another platform
        waiting += [one.name for one in required if one.marker is None or one.marker.evaluate({"extra": ""})]
    return found


def test_make_test_installs_all_that_the_tests_import_and_run():
    names = with_what_they_need(declared("test"))
    assert undeclared("tests", files_of(names)) == set()
    for command in ("lint-imports", "pytest"):
        (script,) = entry_points(group="console_scripts", name=command)
        assert script.dist is not None
        assert canonicalize_name(script.dist.name) in names


def test_an_undeclared_import_would_be_found(files: set[str]):
    assert not is_provided("pytest", files)
    assert not is_provided("opentelemetry.instrumentation.django", files)
    assert list(foreign_imports("import os, pytest\nfrom domain import ids\nfrom mlx_lm.utils import load")) == [
        "pytest",
        "mlx_lm.utils",
    ]
