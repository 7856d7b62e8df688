"""The live screen: a frame every so often until `stop` is set, whatever becomes of the server meanwhile.

A server that does not answer is asked again; what it last said stays, with how old it is.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.text import Text

from interfaces.cli.pace import told_time
from interfaces.cli.running_server import NoAnswer
from interfaces.cli.top.reading import Reading

if TYPE_CHECKING:
    from rich.console import Console

QUIT_KEYS = b"qQ\x04"
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KEYS_TOLD = Text("q quits", "dim")


class Fatal(Exception):
    """The server refuses, and would refuse again; the message says what."""


async def watch(
    read: Callable[[], Awaitable[Reading]],
    show: Callable[[Reading | None, str, float], object],
    stop: asyncio.Event,
    wait: Callable[[asyncio.Event], Awaitable[object]],
    now_s: Callable[[], float],
) -> None:
    """`show` gets what was last read, why there is nothing newer (empty where there is), and since how many seconds.
    `wait` returns when the next frame is due or `stop` is set. Raises Fatal."""
    last: Reading | None = None
    seen_s = now_s()
    while not stop.is_set():
        problem = ""
        reading = asyncio.ensure_future(read())
        stopping = asyncio.ensure_future(stop.wait())
        await asyncio.wait((reading, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not reading.done():
            reading.cancel()
            return
        try:
            last, seen_s = reading.result(), now_s()
        except NoAnswer as why:
            if why.http_status in (401, 403, 404) and last is None:
                raise Fatal(str(why)) from None
            problem = str(why)
        show(last, problem, now_s() - seen_s)
        await wait(stop)


def trouble(problem: str, age_s: float, *, has_reading: bool) -> Sequence[Text]:
    """What stands above a frame that is not the newest."""
    if not problem:
        return ()
    old = f"; what follows is {told_time(age_s)} old" if has_reading else "; asking again"
    return (Text(f"{problem}{old}", "bold red"),)


@contextmanager
def stopped_by_keys(stop: asyncio.Event) -> Generator[None]:
    """While the block runs, q, Ctrl-C and SIGTERM set `stop`; the terminal is as before afterwards. On the loop."""
    loop = asyncio.get_running_loop()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)
    handle = sys.stdin.fileno() if sys.stdin.isatty() else None
    before = None if handle is None else termios.tcgetattr(handle)
    try:
        if handle is not None:
            tty.setcbreak(handle)
            loop.add_reader(handle, _take_keys, handle, stop)
        yield
    finally:
        if handle is not None:
            loop.remove_reader(handle)
            termios.tcsetattr(handle, termios.TCSADRAIN, before or [])
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def _take_keys(handle: int, stop: asyncio.Event) -> None:
    keys = os.read(handle, 64)
    if not keys or any(key in QUIT_KEYS for key in keys):  # nothing to read: the terminal is gone
        stop.set()


async def due(stop: asyncio.Event, interval_s: float) -> None:
    """After so many seconds, or at once when `stop` is set."""
    try:
        async with asyncio.timeout(interval_s):
            await stop.wait()
    except TimeoutError:
        return


def can_draw(console: "Console") -> bool:
    """Whether there is somebody to draw for."""
    return console.is_terminal and sys.stdout.isatty() and not console.is_dumb_terminal


__all__ = ("KEYS_TOLD", "Fatal", "can_draw", "due", "stopped_by_keys", "trouble", "watch")
