"""Kills the engine of a server in the middle of eight answers, at a moment that is drawn in events of theirs: after so
many chunks have come to clients, one and all. Never by a clock.
"""

import os
import re
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import httpx

from tests.support.engines.process.answer_streams import Answer, read_all
from tests.support.patience import PATIENCE_S
from tests.support.processes.cli_process import CairnProcess, cairn_process

AGAIN = 0.2
"""How often the next engine is killed as well, as soon as it is launched: before it has anybody's request."""

MAX_LOOKS = 1_000
PROC = Path("/proc")


class Countdown:
    """Calls `reached` once, on the thread whose event brings the count to zero. Any thread."""

    def __init__(self, num_events: int, reached: Callable[[], object]) -> None:
        self._num_left = num_events
        self._reached = reached
        self._lock = threading.Lock()
        self.num_seen = 0
        if not num_events:
            reached()

    def seen(self) -> None:
        with self._lock:
            self.num_seen += 1
            if self.num_seen == self._num_left:
                self._reached()

    def end(self) -> None:
        """No more events come."""
        if self.num_seen < self._num_left:
            self._reached()


@dataclass(frozen=True)
class Held:
    """Of the server's process, as the kernel counts it: what must not grow. `descriptors`: how many of each kind or
    file. `children`: what they run."""

    num_threads: int
    descriptors: Counter[str]
    resident_bytes: int
    children: tuple[str, ...]

    @classmethod
    def by(cls, pid: int) -> "Held":
        process = PROC / str(pid)
        pages = int((process / "statm").read_text().split()[1])
        return cls(
            len(os.listdir(process / "task")),
            Counter(kind_of(link) for link in (process / "fd").iterdir()),
            pages * os.sysconf("SC_PAGE_SIZE"),
            tuple(sorted(command_of(child) for child in PROC.glob("[0-9]*") if parent_of(child) == pid)),
        )

    def leaked(self, before: "Held") -> dict[str, int]:
        """Descriptors of which there are more than before. A file that was opened meanwhile is none of them, however
        late a loaded machine comes to open it: a leak has one more with each engine."""
        return {kind: num for kind, num in self.descriptors.items() if num > max(1, before.descriptors[kind])}


class KilledServer:
    """`num_resumed`: for each time that another engine took over, how many choices went on in it."""

    def __init__(self, cairn: CairnProcess) -> None:
        self.cairn = cairn
        self.num_resumed: list[int] = []
        self._pid = self._launched()
        found = re.search(r"at (http://\S+)/v1", cairn.read_until("Cairn serves"))
        assert found
        self.url = found[1]

    def calm(self, salt: str = "") -> tuple[dict[str, Answer], int]:
        """Undisturbed, and how many events that takes."""
        count = Countdown(0, lambda: None)
        return read_all(self.url, salt, count.seen), count.num_seen

    def disturbed(self, draw: Random, most: int, salt: str) -> dict[str, Answer]:
        """Killed after `most` events at the latest. Returns once another engine has taken over."""
        is_killed = threading.Event()

        def kill() -> None:
            os.kill(self._pid, signal.SIGKILL)
            is_killed.set()

        def see_the_next(is_killed_too: bool) -> None:
            is_killed.wait()
            self._pid = self._launched()
            if is_killed_too:
                os.kill(self._pid, signal.SIGKILL)
                self._pid = self._launched()

        count = Countdown(draw.randrange(most), kill)
        watcher = threading.Thread(target=see_the_next, args=(draw.random() < AGAIN,))
        watcher.start()
        try:
            answers = read_all(self.url, salt, count.seen)
        finally:
            count.end()  # where chunks came together there were fewer of them
            watcher.join()
        line = self.cairn.read_until("another engine took over")
        assert "was killed by SIGKILL" in line
        found = re.search(r"with (\d+) choices", line)
        assert found
        self.num_resumed.append(int(found[1]))
        return answers

    def held(self, most: Held | None = None) -> Held:
        """Now; or when it holds no more than `most`, which it may take a moment to let go of."""
        num_looks = 0
        with httpx.Client(base_url=self.url, timeout=PATIENCE_S) as client:
            while True:
                client.get("/health/live")  # what lets a turn of its loop pass
                found, num_looks = Held.by(self.cairn.pid), num_looks + 1
                if most is None or not found.leaked(most) or num_looks == MAX_LOOKS:
                    return found

    def _launched(self) -> int:
        found = re.search(r"the engine runs in process (\d+)", self.cairn.read_until("the engine runs in process"))
        assert found
        return int(found[1])


def kind_of(link: Path) -> str:
    """A file by its name, and anything else without its number."""
    try:
        return os.readlink(link).partition(":[")[0]
    except OSError:  # it was closed in between
        return ""


def parent_of(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:  # it has ended in between
        return None


def command_of(process: Path) -> str:
    """The module that it runs; what has ended and was not waited for has no name."""
    words = (process / "cmdline").read_bytes().split(b"\0")
    return words[words.index(b"-m") + 1].decode() if b"-m" in words else b" ".join(words).decode()


@contextmanager
def killed_server(home: Path, arguments: Sequence[str], *, is_killed_often: bool) -> Iterator[KilledServer]:
    """`cairn serve`, stopped with the block, in order. `is_killed_often`: losses cost it no pauses."""
    command = ("serve", "--port", "0", "--block-size", "16", "--prefill-grid", "32", *arguments)
    module = "tests.support.http.servers.killed_server" if is_killed_often else "tests.support.stores.small_blocks"
    with cairn_process(home, command, module=module) as cairn:
        yield KilledServer(cairn)
        cairn.send(signal.SIGTERM)
        assert cairn.wait() == 0
