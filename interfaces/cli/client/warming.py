"""Warming a running server, with a look now and then at how far it is: the admin API tells of every open request.

Who may not look there (a key that is no admin's, an older server) waits without a bar. Interrupted, the server computes
no further, and what it has computed so far is kept.
"""

import asyncio
from collections.abc import Mapping
from typing import Protocol, cast

from interfaces.cli.client.running_server import NoAnswer
from interfaces.cli.terminal.progress import Opener, Unit, progress

LOOK_EVERY_S = 0.5
TIMEOUT_S = 5.0
OPERATION = "warmCache"


class Asks(Protocol):
    """See RunningServer."""

    async def ask(self, path: str, body: bytes | None = None, timeout_s: float | None = None) -> dict[str, object]: ...


async def warmed(
    server: Asks, body: bytes, *, quiet: bool, look_every_s: float = LOOK_EVERY_S, opener: Opener = progress
) -> dict[str, object]:
    """The server's answer. Raises NoAnswer."""
    asking = asyncio.ensure_future(server.ask("/v1/cache/warm", body))
    prompts: dict[str, tuple[int, int]] = {}
    may_look = not quiet
    try:
        with opener("warming", None, Unit.TOKENS, quiet=quiet) as bar:
            while not (await asyncio.wait([asking], timeout=look_every_s))[0]:
                if not may_look:
                    continue
                try:
                    found = _warming(await server.ask("/admin/api/requests?ended=0", timeout_s=TIMEOUT_S))
                    prompts = {id: (total, total) for id, (_, total) in prompts.items()} | found  # gone is whole
                except NoAnswer as why:
                    may_look = why.http_status is None  # busy now, or never for us
                if prompts:
                    bar.reach(sum(done for done, _ in prompts.values()), sum(total for _, total in prompts.values()))
        return asking.result()
    finally:
        asking.cancel()


def _warming(answer: Mapping[str, object]) -> dict[str, tuple[int, int]]:
    """Tokens done, and in all, of the prompts that are being warmed, by request."""
    found: dict[str, tuple[int, int]] = {}
    for request in cast("list[Mapping[str, object]]", answer.get("open") or []):
        match request:
            case {"id": str(id), "operation": operation, "done_tokens": int(done), "prompt_tokens": int(total)}:
                if operation == OPERATION:
                    found[id] = done, total
            case _:
                continue
    return found
