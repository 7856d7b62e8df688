"""The limit of open files of a server that was started with a Mac's, 256: both of its processes need more."""

import resource
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.processes.cli_process import cairn_process

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_the_process_that_holds_the_connections_has_its_limit_raised(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        try:
            arguments = ["serve", "--backend", "fake", "--port", "0", "--store", "off"]
            server = stack.enter_context(cairn_process(tmp_path, arguments))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server.read_until("http://")
        children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
        assert children
        for pid in (server.pid, *map(int, children)):
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] > 256
