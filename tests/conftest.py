"""Set before anything imports MLX: no run-time C++ compiler, MLX's own BLAS whatever the machine has (or the same bits
sooner), no telemetry, no hub.

`CAIRN_BLAS= make test` tests with the OpenBLAS that users get: quicker, but in kernels that depend on shapes, as GPUs'.

And for Hypothesis: no deadline and no complaint about slow examples, for both measure the machine; as many examples as
the effort of this run asks for, where a test does not say; and the same ones every time. Others are drawn by a long run
(`make test-long`): what luck finds is no fault of the change that happens to be tested then.

What a client's grammar may take of a server is bounded by a clock, which here would measure the machine as well.

Collecting makes half a million objects that stay to the end: garbage is not collected meanwhile, or among them later.
Bytecode is written whatever the environment says, or each of a hundred commands that tests start would compile it all.
"""

import gc
import logging
import os
import sys
from collections.abc import Generator
from typing import Any

os.environ.setdefault("MLX_DISABLE_COMPILE", "1")
os.environ.setdefault("CAIRN_BLAS", "off")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OTEL_SDK_DISABLED", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest  # after the variables above
from hypothesis import HealthCheck, settings

from adapters.llguidance import compiler
from adapters.system.blas import load_blas
from tests.support.effort import IS_LONG, drawn
from tests.support.frozen_tests import freeze_tests
from tests.support.mlx.process_start import load_plain_blas, start_device
from tests.support.mlx.uneven_kernels import play_uneven_kernels
from tests.support.patience import PATIENCE_S

sys.dont_write_bytecode = False
gc.disable()
if os.environ["CAIRN_BLAS"] == "off":
    load_plain_blas()
load_blas()
start_device()
if os.environ.get("UNEVEN_KERNELS"):
    play_uneven_kernels()
compiler.COMPILE_TIMEOUT_S = PATIENCE_S

settings.register_profile(
    "cairn",
    max_examples=drawn(100),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not IS_LONG,
)
settings.load_profile("cairn")

_HAS_FAILED = pytest.StashKey[bool]()


@pytest.fixture(autouse=True)
def _log_level() -> Generator[None]:
    """A command that runs in this process sets the level of its log lines, `cairn run` to none at all."""
    yield
    logging.getLogger("cairn").setLevel(logging.NOTSET)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    item.stash[_HAS_FAILED] = report.failed or (call.when != "setup" and item.stash.get(_HAS_FAILED, False))
    return report


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """A test that failed takes what it shared with it: the next test gets another server, browser or folder, for the
    old one may be what failed. What is left at the end of a file stays to the end as well."""
    shared = item.session._setupstate
    if item.stash.get(_HAS_FAILED, False):
        shared.teardown_exact(None)
    try:
        return (yield)
    except BaseException:
        shared.teardown_exact(None)
        raise
    finally:
        if nextitem is None or nextitem.path != item.path:
            freeze_tests()


def pytest_collection_finish() -> None:
    freeze_tests()
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
