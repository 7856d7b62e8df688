"""An event loop that notes each timer it is asked for, so that a test can say how often an idle one wakes."""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any


class TimedLoop(asyncio.SelectorEventLoop):
    """`delays`: seconds of the timers so far, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.delays: list[float] = []

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.delays.append(delay)
        return super().call_later(delay, callback, *args, context=context)
