"""Questions to the child, and what its prefix cache is asked: one Ask, one Answer. Event loop only."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import msgspec

from adapters.engine_process.messages import QUESTIONS, Answer, Ask, ToChild, Withdraw, raw
from adapters.engine_process.values import decoded
from application.ports.cache_stats import CacheStats, Cleared
from domain.errors import DomainError
from domain.explanation import Explanation
from domain.id_row import IdRow
from domain.ids import ModelId
from domain.prompt_content import EncodedPrompt


class Questions:
    """Each is answered, or ended with the engine."""

    def __init__(self, send: Callable[[ToChild], None]) -> None:
        self._send = send
        self._numbers = count()
        self._open: dict[int, tuple[str, asyncio.Future[Any]]] = {}

    def __len__(self) -> int:
        """Those that wait for an answer. Any thread."""
        return len(self._open)

    async def ask(self, what: str, *arguments: object) -> Any:
        """Raises what the child raised, or what the engine ended with. Who leaves withdraws the question."""
        call = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._open[call] = what, answer
        try:
            self._send(Ask(call, what, raw(arguments)))
            return await answer
        except asyncio.CancelledError:
            if call in self._open:
                self._send(Withdraw(call))
            raise
        finally:
            self._open.pop(call, None)

    def answered(self, message: Answer) -> None:
        """Raises msgspec.MsgspecError. One that was withdrawn is ignored."""
        what, answer = self._open.pop(message.call, ("", None))
        if answer is None or answer.done():
            return
        if message.error is not None:
            answer.set_exception(message.error.to_error())
        else:
            answer.set_result(decoded(message.value, QUESTIONS[what].answer))

    def end(self, make: Callable[[], DomainError]) -> None:
        """Nobody answers any more. `make`: an error for each, whose tracebacks differ."""
        for _, answer in self._open.values():
            if not answer.done():
                answer.set_exception(make())
        self._open.clear()


class AskedCache:
    """An EngineCache. `ask` as in `Questions`, and raises ServerUnavailable without an engine."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask

    async def explain(self, model: ModelId, prompt: EncodedPrompt, salt: str) -> Explanation:
        told: Explanation = await self._ask("explain", model, prompt, salt)
        return told

    async def num_stored(self, model: ModelId, prompt_ids: Sequence[int], salt: str) -> int | None:
        found: int | None = await self._ask("num_stored", model, IdRow(prompt_ids), salt)
        return found

    async def settle(self, timeout_s: float) -> bool:
        is_settled: bool = await self._ask("settle", float(timeout_s))
        return is_settled

    async def stats(self) -> CacheStats:
        stats: CacheStats = await self._ask("stats")
        return stats

    async def clear(self, model: str | None, salt: str | None) -> Cleared:
        cleared: Cleared = await self._ask("clear", model, salt)
        return cleared


NO_VALUE = msgspec.Raw(b"\xc0")
"""Of an answer that is an error."""

__all__ = ("NO_VALUE", "AskedCache", "Questions")
