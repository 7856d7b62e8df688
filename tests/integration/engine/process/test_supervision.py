"""The notifications of a process to its supervisor, over real sockets, and the stacks of its threads."""

import threading

import pytest

from adapters.system.systemd import SystemdNotifier, systemd_notifier
from adapters.system.thread_stacks import PythonStacks
from application.services.lane import IDLE_IN, Lane
from tests.support.http.servers.fake_service import wait_until
from tests.support.processes.cli_process import PATIENCE_S
from tests.support.telemetry.notify_socket import HAS_ABSTRACT, notify_socket

KINDS = ["path", pytest.param("abstract", marks=pytest.mark.skipif(not HAS_ABSTRACT, reason="Linux's alone"))]


@pytest.mark.parametrize("kind", KINDS)
def test_systemd_is_notified_in_its_own_words(kind: str) -> None:
    with notify_socket(is_abstract=kind == "abstract") as systemd:
        supervisor = systemd_notifier({"NOTIFY_SOCKET": systemd.address})
        assert supervisor is not None
        supervisor.moving()
        assert systemd.next() == ["EXTEND_TIMEOUT_USEC=60000000"], "a start that goes on is no start that failed"
        supervisor.ready()
        supervisor.ready()
        supervisor.moving()
        assert systemd.waiting() == ["READY=1", "STATUS=serving", "WATCHDOG=1", "WATCHDOG=1"]
        supervisor.stopping()
        supervisor.stopping()
        supervisor.moving()
        assert systemd.waiting() == ["STOPPING=1", "STATUS=finishing running requests", "WATCHDOG=1"]
        supervisor.close()


def test_a_server_that_is_stopped_while_it_starts_is_never_ready() -> None:
    with notify_socket() as systemd:
        supervisor = SystemdNotifier(systemd.address)
        supervisor.stopping()
        supervisor.ready()
        supervisor.moving()
        assert systemd.waiting() == ["STOPPING=1", "STATUS=finishing running requests"]
        supervisor.close()


def test_a_supervisor_that_does_not_listen_holds_nobody_up() -> None:
    """Its queue is full, or it is gone."""
    with notify_socket() as systemd:
        supervisor = SystemdNotifier(systemd.address)
        for _ in range(5_000):
            supervisor.moving()
        supervisor.ready()
        assert "READY=1" not in systemd.waiting(), "there was no room"
        supervisor.moving()
        assert systemd.next()[0] == "READY=1", "it is said once more"
    supervisor.moving()
    supervisor.close()
    supervisor.moving()


@pytest.mark.parametrize("address", ["", "@", "relative/path", "vsock:2:1234"])
def test_without_a_socket_of_this_machine_there_is_no_supervisor(address: str) -> None:
    assert systemd_notifier({"NOTIFY_SOCKET": address}) is None


def test_stacks_show_where_threads_are_but_for_those_that_wait_for_work() -> None:
    entered, leave = threading.Event(), threading.Event()

    def hang() -> None:
        entered.set()
        leave.wait(PATIENCE_S)

    lane, reader = Lane("stacks-test", 2), Lane("reads-stacks", 1)
    stacks = PythonStacks(("cairn-stacks", "MainThread"), (IDLE_IN,))
    text = ""

    def threads() -> list[str]:
        nonlocal text
        text = reader.submit(stacks.read).result(PATIENCE_S)
        return [line for line in text.splitlines() if line.startswith("thread ")]

    try:
        lane.submit(lambda: None).result(PATIENCE_S)
        # A thread that has just begun, or sent its result, is on its way to where it waits.
        wait_until(lambda: stacks.read() == "", "the lane's threads to wait for work")
        lane.submit(hang)
        assert entered.wait(PATIENCE_S)
        wait_until(lambda: len(threads()) == 2, "the one that hangs and the one that asks to be left")
    finally:
        leave.set()
        lane.close()
        reader.close()
    first, other = [line for line in text.splitlines() if line.startswith("thread ")]
    assert first.startswith("thread cairn-stacks-test-")
    assert other == "thread MainThread:"
    assert f"{__file__}:" in text
    assert ".hang" in text
