"""Waiting for a model, with a sign of life: the first download of a hub model takes minutes."""

import asyncio
from collections.abc import Callable

from application.services.text_side.served_model import ServedModel
from domain.byte_size import format_bytes
from interfaces.composition.service import Service

INTERVAL_S = 2.0


async def wait_for_model(service: Service, tell: Callable[[str], None]) -> ServedModel:
    """Wait for the default model; `tell` gets a line now and then during a download. Raises what loading raised."""
    waiting = asyncio.ensure_future(service.ready())
    try:
        while not (await asyncio.wait([waiting], timeout=INTERVAL_S))[0]:
            if (progress := service.pool.download) is not None:
                done, total = format_bytes(progress.done_bytes), format_bytes(progress.total_bytes)
                tell(f"downloading {service.settings.model.default}: {done} of {total}")
        return await waiting
    finally:
        waiting.cancel()


__all__ = ("wait_for_model",)
