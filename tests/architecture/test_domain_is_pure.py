"""Domain and application import in an interpreter that has nothing but the standard library."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

IMPORT_ALL = """
import importlib, json, pkgutil, sys
sys.path.insert(0, sys.argv[1])
for layer in sys.argv[2:]:
    package = importlib.import_module(layer)
    for module in pkgutil.walk_packages(package.__path__, layer + "."):
        importlib.import_module(module.name)
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("layers", [("domain",), ("domain", "application")], ids=" and ".join)
def test_imports_nothing_but_the_standard_library(layers: tuple[str, ...]):
    # -I: no user site, no PYTHON* variables, no current folder; -S: no site-packages at all.
    result = subprocess.run(
        [sys.executable, "-I", "-S", "-c", IMPORT_ALL, str(ROOT), *layers],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    loaded = {name.partition(".")[0] for name in json.loads(result.stdout)}
    assert set(layers) <= loaded
    assert loaded - set(layers) <= sys.stdlib_module_names | {"__main__"}
