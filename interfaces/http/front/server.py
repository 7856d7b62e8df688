"""The HTTP server: an application on its own socket, in this process and on the running event loop, until `stop`."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import cast

import uvicorn
from litestar import Litestar

from application.settings import ServerSettings
from domain.host_name import url_of
from interfaces.http.front.connection import BoundedConnection
from interfaces.http.front.connection_limits import ConnectionLimits, ConnectionSlots
from interfaces.http.front.guard import Refusals
from interfaces.http.front.socket_connection import BoundedSocket
from interfaces.http.incoming.request_context import BodyBudget

KEEP_ALIVE_S = 75
"""Time after which an idle connection is closed; above the usual 60 s of clients and proxies, so that they close
first."""

GRACE_S = 10
"""Time for running requests to finish after `stop`."""

CANCEL_S = 2
"""Time to end the requests that did not finish."""

BACKLOG = 2048


class AddressUnavailable(Exception):
    """The server cannot listen on the address; the message says why and what to do."""


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, run: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._run = run

    async def main_loop(self) -> None:
        """Runs until the end without uvicorn's ten looks a second; each connection dates its own answers."""
        await self._run()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leaves signals to the caller: uvicorn would raise them again when it ends, before the engine has stopped."""
        yield


class HttpServer:
    """The server of one address. Construction binds the address (AddressUnavailable if that fails), so that the port is
    known before any model is loaded."""

    def __init__(self, settings: ServerSettings, limits: ConnectionLimits | None = None) -> None:
        self._settings = settings
        self._limits = limits or ConnectionLimits()
        self._socket = _listen(settings.host, settings.port)
        self._server: _Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()
        self._grace_s: float = GRACE_S

    @property
    def port(self) -> int:
        """The port that is bound, also where the settings have 0."""
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def base_url(self) -> str:
        return url_of(self._settings.host, self.port)

    async def serve(
        self,
        app: Litestar,
        on_started: Callable[[str], None] = lambda _url: None,
        cut_off: Callable[[], None] = lambda: None,
    ) -> None:
        """Serves an application of `create_app` until `stop`. Running requests may then finish within the grace time;
        `cut_off` ends the rest. Closes the socket."""
        refusals: Refusals = app.state.refusals
        slots = ConnectionSlots(self._limits.max_connections)
        bodies: BodyBudget = app.state.bodies
        connection = partial(BoundedConnection, self._limits, slots, refusals)
        upgraded = partial(BoundedSocket, self._limits, slots, refusals, bodies)
        config = uvicorn.Config(
            app,
            http=cast(type[asyncio.Protocol], connection),
            ws=cast(type[asyncio.Protocol], upgraded),
            ws_max_size=bodies.max_body_bytes,
            ws_per_message_deflate=False,  # what it expands to is not bounded before
            lifespan="on",
            log_config=None,
            log_level="error",  # every malformed request is a warning; HttpRefused counts and logs them
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=GRACE_S + CANCEL_S,
        )
        self._loop = loop = asyncio.get_running_loop()
        with closing(self._socket), ExitStack() as ended:

            async def run() -> None:
                on_started(self.base_url)
                await self._ending.wait()
                ended.callback(loop.call_later(self._grace_s, cut_off).cancel)

            self._server = _Server(config, run)
            await self._server.serve(sockets=[self._socket])

    def stop(self, grace_s: float = GRACE_S) -> None:
        """Makes `serve` return; requests may take `grace_s`, at most GRACE_S. Any thread."""
        if self._loop is not None:
            self._grace_s = grace_s
            with suppress(RuntimeError):  # the loop is closed, and the server with it
                self._loop.call_soon_threadsafe(self._ending.set)

    def close(self) -> None:
        """Releases the address of a server that was never started."""
        self._socket.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns Nagle's algorithm off only where the protocol is named; with it each answer takes 40 ms longer
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressUnavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --port or --host"
        ) from error
    return listener
