"""The calls into macOS on a Mac. They were written without one: a first failure may be theirs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from adapters.system.backup import exclude_from_backup
from adapters.system.mac import MacCalls
from adapters.system.machine import SystemMemory
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.skipif(sys.platform != "darwin", reason="calls into macOS")

MIB = 1 << 20


def test_memory_that_is_written_to_is_held():
    before = SystemMemory().read()
    assert before.available_bytes is not None
    assert before.held_bytes is not None
    block = bytearray(os.urandom(64 * MIB))  # random, because a page of zeros is compressed to nothing
    assert (SystemMemory().read().held_bytes or 0) >= before.held_bytes + 60 * MIB
    del block


def test_an_assertion_is_listed_until_it_is_released():
    calls = MacCalls()
    held = calls.stay_awake("a test of Cairn")
    assert "a test of Cairn" in output("pmset", "-g", "assertions")
    calls.may_sleep(held)
    assert "a test of Cairn" not in output("pmset", "-g", "assertions")


def test_time_machine_leaves_a_marked_folder_out(tmp_path: Path):
    exclude_from_backup(tmp_path)
    assert output("tmutil", "isexcluded", str(tmp_path)).startswith("[Excluded]")


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
