"""Families of mlx-vlm with a defect: the load's check finds it, and not once it is mended."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S

pytest.importorskip("mlx_vlm")

ROOT = Path(__file__).parents[3]
NAMES = ("deepseek_v4", "hy_v4")

CHECK = """
import json, sys
import mlx.core as mx
import adapters.mlx.vlm.trunk as trunk
from adapters.mlx.caches.leaves import new_caches
from adapters.mlx.loading.pieces import flaw_of
from tests.support.engines.finish_load import finish_load
from tests.support.mlx.tiny_models import build
if sys.argv[1] == "as they are":
    trunk.mend = lambda family: None
tokens = mx.array([[(7 * place * place + 5) % 256 for place in range(300)]])
found = {}
for name in sys.argv[2:]:
    network = build(name, index_topk=64, index_block=0)
    logits = network(tokens, cache=new_caches(network))[0, -1].tolist()
    found[name] = [finish_load(flaw_of(build(name, index_topk=512), 256)), logits]
sys.stdout.write(json.dumps(found))
"""
"""The flaw of each family with a selection as large as released ones, and the logits behind one pass, which are right
either way but for the selection of blocks. Compiled, as in a server: one of the defects is a compiled function's."""


def examined(how: str) -> dict[str, tuple[str, list[float]]]:
    environment = {name: value for name, value in os.environ.items() if name != "MLX_DISABLE_COMPILE"}
    command = [sys.executable, "-c", CHECK, how, *NAMES]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr[-500:]
    return {name: (flaw, logits) for name, (flaw, logits) in json.loads(ended.stdout).items()}


def test_the_load_finds_the_defects_of_mlx_vlm_and_none_once_they_are_mended() -> None:
    before, after = examined("as they are"), examined("mended")
    for name in NAMES:
        assert "computed in pieces differs from one computed in a single pass" in before[name][0]
        assert after[name][0] == ""
        assert after[name][1] == pytest.approx(before[name][1], abs=1e-4), "a mend changes no single pass"
