"""The environment of the process that computes, as it is when MLX is first imported."""

import subprocess
import sys

import pytest

from application.installation import child_environment
from tests.support.patience import PATIENCE_S

VARIABLE = "AGX_RELAX_CDM_CTXSTORE_TIMEOUT"

CODE = f"""
import os, sys
from types import SimpleNamespace
from interfaces.cli.server import engine_child
from interfaces.composition import backends

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "mlx.core":
            print("set to", os.environ.get({VARIABLE!r}))
            sys.exit()

sys.meta_path.insert(0, Watch())
backends.sys = SimpleNamespace(platform=sys.argv[1])
engine_child.import_engine("mlx")
"""


@pytest.mark.parametrize(
    ("platform", "own", "expected"), [("darwin", None, "1"), ("darwin", "0", "0"), ("linux", None, "None")]
)
def test_macos_is_asked_for_patience_before_mlx_is_imported(platform: str, own: str | None, expected: str) -> None:
    environment = {name: value for name, value in child_environment().items() if name != VARIABLE}
    environment |= {VARIABLE: own} if own is not None else {}
    done = subprocess.run(
        [sys.executable, "-c", CODE, platform],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stdout.splitlines() == [f"set to {expected}"], done.stderr
