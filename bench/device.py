"""What MLX computes on here, and whether everything is installed that a server needs: asked before minutes are spent.

    python -m bench.device [--accelerator] [--json FILE]

`--accelerator`: fails on a CPU, which is also what MLX falls back to where it cannot load its CUDA libraries.
"""

import argparse
import importlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.results import Results, where

NEEDED = (
    *("litestar", "uvicorn", "httptools", "msgspec", "lmdb", "zstandard", "xxhash", "llguidance", "tokenizers"),
    *("mlx_lm.server", "interfaces.cli.main", "interfaces.composition.service"),
)


def missing() -> list[str]:
    """Modules that cannot be imported, and why."""
    found: list[str] = []
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except Exception as error:  # a library that is not there, or does not load
            found.append(f"{name}: {error}")
    return found


def described() -> dict[str, Any]:
    """On this thread, which takes the device."""
    import mlx.core as mx

    from adapters.mlx.cuda_link import find_link
    from adapters.mlx.device import describe_device, on_cpu
    from adapters.mlx.run_ahead import most_ahead_bytes, run_ahead

    started = time.perf_counter()
    mx.eval(mx.random.normal((1024, 1024)) @ mx.ones((1024, 1024)))
    first_s = time.perf_counter() - started
    facts = {
        "mlx_device": describe_device(),
        "is_cpu": on_cpu(),
        "device_memory": None if on_cpu() else mx.device_info().get("total_memory"),
        "cuda_link": find_link() is not None,
        "run_ahead": str(run_ahead()),
        "most_ahead_bytes": most_ahead_bytes(),
        "first_matmul_s": first_s,
        "free_disk_GB": shutil.disk_usage(tempfile.gettempdir()).free / 1e9,
    }
    mx.synchronize()
    mx.clear_streams()
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accelerator", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = Results(options.json, "device")
    facts = {"missing": missing(), **described()}
    results.add("device", **facts)
    for name, value in {**where(), **facts}.items():
        print(f"{name:>18}  {value}", flush=True)
    if facts["missing"]:
        raise SystemExit("what servers need is not all here")
    if options.accelerator and facts["is_cpu"]:
        raise SystemExit("MLX computes on the CPU here")


if __name__ == "__main__":
    main()
