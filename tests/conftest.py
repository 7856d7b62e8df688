"""Set before anything imports MLX: no run-time C++ compiler, one BLAS thread, no telemetry, no hub."""

import os
import sys

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest  # after the variables above

from adapters.system.blas import load_blas

load_blas()  # real models compute some ten times faster with it, and in shape-dependent kernels, as GPUs do


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave at once with the run's own status: MLX's threads sometimes abort an interpreter that has long finished.

    Everything is reported by now; only the interpreter's teardown is skipped.
    """
    status = getattr(config, "cairn_exit_status", None)
    if status is not None and "mlx.core" in sys.modules:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.cairn_exit_status = int(exitstatus)  # type: ignore[attr-defined]
