"""uvicorn sleeps twice for 0.1 s while it stops, which hundreds of servers would wait for: in tests, for 0.01 s."""

import asyncio

import uvicorn.server


class _Quick:
    """The module asyncio, in the eyes of `uvicorn.server`."""

    def __getattr__(self, name: str) -> object:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


def stop_quickly() -> None:
    uvicorn.server.asyncio = _Quick()  # type: ignore[attr-defined, assignment]
