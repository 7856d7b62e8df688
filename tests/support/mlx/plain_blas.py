"""The products of the reference BLAS that MLX brings, bit for bit, in a fraction of its time.

That was half of what tests of the embedded models took. Compiled where there is a C compiler, for the machine that it
runs on; elsewhere tests are slower, and nothing else differs.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.patience import PATIENCE_S

_SOURCE = Path(__file__).with_suffix(".c")
_FLAGS = ("-shared", "-fPIC", "-O3", "-march=native", "-ffp-contract=off")  # as the reference: no fused products


def load_plain_blas() -> bool:
    """Put it in place for the MLX import that follows, in this process only; whether that could be done."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if (sys.platform, platform.machine()) != ("linux", "x86_64") or compiler is None:
        return False
    with TemporaryDirectory(prefix="cairn-blas-") as folder:
        library = os.path.join(folder, "plain_blas.so")
        built = subprocess.run(
            [compiler, *_FLAGS, "-o", library, str(_SOURCE)], capture_output=True, timeout=PATIENCE_S
        )
        if built.returncode == 0:
            ctypes.CDLL(library, mode=os.RTLD_GLOBAL | os.RTLD_NOW)
        return built.returncode == 0
