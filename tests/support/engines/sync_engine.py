"""An engine without a server around it, for tests that are no coroutines: an event loop on a thread of its own, and
everything that came through the port recorded.

Answers are those of the token side: no text, no stop strings.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from application.ports.clock import Clock
from application.ports.compute import ComputeEngine
from application.ports.engine import Ended, EngineItem, EngineModel, EngineStatus, StepBatch, Submission, Tokens
from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.cache import PrefixCache
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.engine_thread import EngineThread
from application.services.token_side.event_batcher import EventBatcher
from domain.ids import ModelId, RequestId
from domain.models.model_card import LoadOptions, ModelSource
from domain.request.request import Usage, choice_id
from domain.request.sampling import SamplingParams
from domain.scheduling.step_values import StepLimits
from tests.support.engines.guards import UnboundedGuard
from tests.support.telemetry.recording import RecordingEvents

T = TypeVar("T")

GREEDY = SamplingParams(temperature=0)


def submission(id: str, model: ModelId, prompt: EncodedPrompt, num_tokens: int, **changes: Any) -> Submission:
    """Greedy, and ended by its length alone, unless `changes` say otherwise."""
    fields: dict[str, Any] = {"sampling": GREEDY, "seed": 7, "ignore_eos": True, **changes}
    return Submission(id=RequestId(id), model=model, prompt=prompt, max_new_tokens=num_tokens, **fields)


class Inbox:
    """What an engine is started with: items by choice, waited for from another thread. Events go on to `events`."""

    def __init__(self, events: RecordingEvents | None = None) -> None:
        self.events = events or RecordingEvents()
        self.num_left_queue = 0
        self._changed = threading.Condition()
        self._items: dict[RequestId, list[EngineItem]] = {}

    def receive(self, batch: StepBatch) -> None:
        with self._changed:
            for event in batch.events:
                self.events.emit(event)
            for id, choice, item in batch.items:
                self._items.setdefault(choice_id(id, choice), []).append(item)
            self.num_left_queue += batch.num_left_queue
            self._changed.notify_all()

    def items(self, id: str) -> list[EngineItem]:
        """So far."""
        with self._changed:
            return list(self._items.get(RequestId(id), []))

    def wait_for_end(self, id: str, timeout_s: float) -> list[EngineItem]:
        """All items of a choice once it ended; an AssertionError if it does not."""

        def ended() -> bool:
            return bool(items := self._items.get(RequestId(id))) and isinstance(items[-1], Ended)

        with self._changed:
            assert self._changed.wait_for(ended, timeout_s), f"{id} did not end"
            return list(self._items[RequestId(id)])


class SyncEngine:
    """An EngineThread that any thread may call. `stop` when done."""

    def __init__(
        self,
        make_backend: Callable[[], ComputeEngine],
        *,
        prefix_cache: PrefixCache,
        limits: StepLimits,
        clock: Clock,
        inbox: Inbox,
        batcher: EventBatcher | None = None,
    ) -> None:
        self.inbox = inbox
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="event loop")
        self._thread.start()
        batcher = batcher or EventBatcher(clock)
        self.engine = EngineThread(
            EngineLoop(batcher=batcher, prefix_cache=prefix_cache, guard=UnboundedGuard(), limits=limits),
            make_backend=make_backend,
        )

    def start(self) -> None:
        async def start() -> None:
            self.engine.start(self.inbox.receive)

        self._call(start()).result()

    def stop(self, timeout_s: float) -> bool:
        """Idempotent, and what was delivered by then is in the inbox."""
        if not self._thread.is_alive():
            return True
        has_ended = self._call(self.engine.stop(timeout_s)).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        return has_ended

    def status(self) -> EngineStatus:
        return self.engine.status()

    def submit(self, submission: Submission) -> None:
        self.engine.submit(submission)

    def cancel(self, id: str, choice: int | None = None, **how: Any) -> None:
        self.engine.cancel(RequestId(id), choice, **how)

    def load(self, source: ModelSource, options: LoadOptions) -> "Future[EngineModel]":
        return self._asked(self.engine.load(source, options))

    def unload(self, id: ModelId) -> "Future[None]":
        return self._asked(self.engine.unload(id))

    def tokens(self, id: str, timeout_s: float) -> list[int]:
        """Of a choice, once it ended."""
        return tokens_of(self.inbox.wait_for_end(id, timeout_s))

    def _asked(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        """The engine has been asked by the time this returns: whatever is let go on afterwards comes later."""
        found = self._call(work)
        self._call(asyncio.sleep(0)).result()
        return found

    def _call(self, work: Coroutine[Any, Any, T]) -> "Future[T]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)


def usage_of(items: list[EngineItem]) -> Usage:
    """The counts of an ended choice, with its drafted tokens, which are counted as they come."""
    end, proposed, accepted = items[-1], Counter[str](), Counter[str]()
    assert isinstance(end, Ended)
    for item in items:
        if isinstance(item, Tokens) and item.drafter is not None:
            proposed[item.drafter.value] += item.num_proposed
            accepted[item.drafter.value] += len(item.token_ids) - 1
    return replace(end.usage, proposed=dict(proposed), accepted=dict(accepted))


def tokens_of(items: list[EngineItem]) -> list[int]:
    return [token for item in items if isinstance(item, Tokens) for token in item.token_ids]
