"""Set before anything imports MLX: no run-time C++ compiler, MLX's own BLAS whatever the machine has, no telemetry, no
hub.

`CAIRN_BLAS= make test` tests with the OpenBLAS that users get: quicker, but in kernels that depend on shapes, as GPUs'.

And for Hypothesis: no deadline and no complaint about slow examples, for both measure the machine; and as many examples
as the effort of this run asks for, where a test does not say.

Collecting makes half a million objects that stay to the end: nobody looks for garbage meanwhile, or among them later.
Bytecode is written whatever the environment says, or each of a hundred commands that tests start would compile it all.
"""

import gc
import os
import socket
import sys

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
os.environ.setdefault("CAIRN_BLAS", "off")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest  # after the variables above
from hypothesis import HealthCheck, settings

from adapters.system.blas import load_blas
from tests.support.effort import scaled

sys.dont_write_bytecode = False
gc.disable()
load_blas()

settings.register_profile(
    "cairn", max_examples=scaled(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("cairn")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Where failed tests are run again (`.ci/run`), each process writes every test to a socket: at once, not batched.

    pytest-rerunfailures 16.7 writes twice before it reads, so each test would wait 40 ms for an acknowledgement.
    """
    counted_over = getattr(getattr(config, "failures_db", None), "sock", None)
    if counted_over is not None:
        counted_over.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.enable()


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
