"""`cairn run` as a process whose engine stands still in its first answer until the test says go.

`python -m tests.support.http.servers.held_chat fake|mlx PIPE`: the compute thread waits until the named pipe PIPE is
opened for writing. The toy engine has said `SAID` by then; MLX waits before its first chunk.
"""

import asyncio
import signal
import sys
from pathlib import Path

from adapters.fake.engine import FakeEngine, FakeModels
from adapters.fake.options import FakeOptions, reply_with
from adapters.fake.tokenizer import FakeTokenizers
from application.settings import EngineSettings, ModelSettings, Settings, StoreSettings
from domain.ids import SequenceId
from interfaces.cli.commands.run import converse
from interfaces.cli.server.own_server import own_server, own_settings
from interfaces.cli.terminal.ending import leave
from interfaces.composition.backends import Backend, model_repository
from interfaces.composition.service import Service, build_service

REPLY = "A cairn marks the path."
SAID = "A ca"


class Pipe:
    """Holds whoever passes first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._is_closed = True

    def before_operation(self, operation: str, _sequence: SequenceId | None, count: int) -> None:
        """A hook of the toy engine."""
        if operation == "decode" and count == len(SAID):
            self.pass_through(count)

    def pass_through(self, _position: int) -> None:
        """As PrefillGate's."""
        if self._is_closed:
            self._is_closed = False
            self._path.read_bytes()  # opening it waits for a writer


def fake_backend(_settings: Settings, pipe: Pipe) -> Backend:
    engine = FakeEngine(default=FakeOptions(reply=reply_with(REPLY), hook=pipe.before_operation))
    return Backend(lambda: engine, FakeModels(), FakeTokenizers(), default_grid=256)


def mlx_backend(settings: Settings, pipe: Pipe) -> Backend:
    from adapters.system.blas import load_blas

    load_blas()
    from adapters.mlx.runtime.device import preferred_grid
    from adapters.tokenizers.loader import HfTokenizerLoader
    from tests.support.engines.steered_engine import SteeredEngine

    return Backend(
        lambda: SteeredEngine(pipe), model_repository(settings), HfTokenizerLoader(), default_grid=preferred_grid()
    )


def main(kind: str, path: Path) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts its background jobs with it ignored
    settings = Settings(
        model=ModelSettings(default={"fake": "fake-attention", "mlx": "cairn-demo"}[kind], download=False),
        engine=EngineSettings(backend=kind),
        store=StoreSettings(kind="off"),
        server=own_settings(),
    )
    backend = {"fake": fake_backend, "mlx": mlx_backend}[kind](settings, Pipe(path))
    service = build_service(settings, backend=backend)
    asyncio.run(chat(service))
    leave(0)


async def chat(service: Service) -> None:
    async with own_server(service) as server:
        await converse(server, service.settings.model.default, {"temperature": 0, "max_tokens": 50})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
