"""The token side without a thread: steps when the test says so, and a guard that does what the test wants."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from typing import Any, cast

from adapters.fake.engine import FakeEngine
from adapters.fake.environment import FakeClock
from adapters.fake.options import FakeOptions
from application.events import Event
from application.ports.engine import Ended, EngineItem, ImageWanted, StepBatch, Tokens
from application.ports.tokenizer import EncodedPrompt
from application.services.prefix.cache import PrefixCache
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.live_tier import LiveTier
from application.services.prefix.store_tier import StoreTier
from application.services.prefix.tiers import PrefixTiers
from application.services.token_side.engine_loop import EngineLoop
from application.services.token_side.event_batcher import EventBatcher
from domain.ids import ModelId, SequenceId
from domain.memory.shape import MemoryShape
from domain.models.model_card import LoadOptions, ModelSource
from domain.prefix.prompt_content import BlockGrid
from domain.scheduling.queue_waits import QueueWaits
from domain.scheduling.step_values import SequenceView, StepBudget, StepLimits, WaitingView
from tests.support.engines.finish_load import finish_load
from tests.support.engines.guards import UnboundedGuard
from tests.support.engines.image_desk import ImageDesk
from tests.support.engines.sync_engine import submission
from tests.support.engines.toy_prompts import FILES, Parts, prompt_of
from tests.support.processes.lanes import InlineLane
from tests.support.text.toy_constraints import FakeCompiler

MODEL = ModelId("toy")
BLOCK, GRID = 16, 32


class WilfulGuard(UnboundedGuard):
    """Wants everything back in the steps for which `preempts` says so, given what is active; admits if `admits`.
    `charges`: bytes by the tokens of the prompt and those still to come. `lasts`: what it says of every budget."""

    def __init__(self, steps: StepLimits) -> None:
        super().__init__(steps)
        self.charges: Callable[[int, int], int] = lambda _num_prompt, _num_new: 0
        self.preempts: Callable[[int, Sequence[SequenceView]], bool] = lambda _step, _active: False
        self.admits = True
        self.lasts = 0
        self.num_steps = 0

    def charge_bytes(self, shape: MemoryShape, num_prompt: int, num_new: int) -> int:
        return self.charges(num_prompt, num_new)

    def budget(self, views: Sequence[SequenceView], shapes: Mapping[SequenceId, MemoryShape]) -> StepBudget:
        self.num_steps += 1
        active = [view for view in views if not isinstance(view, WaitingView)]
        preempts = bool(active) and self.preempts(self.num_steps, active)
        return StepBudget(admits=self.admits, preempt_bytes=1 << 60 if preempts else 0, lasts=self.lasts)


class SteppedEngine:
    """`batches`: what was handed over. `model`: the only one; what it holds can be looked at."""

    def __init__(
        self,
        options: FakeOptions | None = None,
        *,
        reuses: bool = True,
        limits: StepLimits | None = None,
        waits: QueueWaits | None = None,
        live_bytes: int = 0,
    ) -> None:
        limits = limits or StepLimits(4, GRID, GRID)
        self.clock, self.guard, lane = FakeClock(tick_ns=10), WilfulGuard(limits), InlineLane()
        self.batches: list[StepBatch] = []
        self._items = defaultdict[tuple[str, int], list[EngineItem]](list)
        batcher = EventBatcher(self.clock)
        batcher.connect(self._receive)
        tiers = PrefixTiers(HotTier(1 << 28), StoreTier(self.clock, batcher), live=LiveTier(live_bytes), hashing=lane)
        self.cache = PrefixCache(tiers, BlockGrid(BLOCK, GRID), is_enabled=reuses)
        self.backend = FakeEngine(default=options or FakeOptions(eos_every=0))
        self.loop = EngineLoop(
            batcher=batcher,
            prefix_cache=self.cache,
            guard=self.guard,
            limits=limits,
            constraints=FakeCompiler(cast(Executor, lane)),
            waits=waits,
        )
        self.desk = ImageDesk(lane, self.loop.images.provide, FILES)
        self.loop.models.connect(self.backend)
        finish_load(self.loop.models.load(ModelSource(MODEL, "nowhere"), LoadOptions()))
        (self.model,) = self.backend.loaded

    def _receive(self, batch: StepBatch) -> None:
        self.batches.append(batch)
        for id, choice, item in batch.items:
            if not isinstance(item, ImageWanted):
                self._items[id, choice].append(item)
        self.desk.receive(batch)

    def submit(self, id: str, prompt: Iterable[int], num_tokens: int = 12, **changes: Any) -> None:
        self.loop.add(submission(id, MODEL, EncodedPrompt.of_text(tuple(prompt)), num_tokens, **changes))

    def ask(self, id: str, parts: Parts, num_tokens: int = 12, **changes: Any) -> None:
        """Submits a prompt of texts and images."""
        asked = submission(id, MODEL, prompt_of(parts), num_tokens, **changes)
        self.desk.note(asked)
        self.loop.add(asked)

    def step(self, number: int = 1) -> None:
        for _ in range(number):
            self.loop.step()

    def run(self, max_steps: int = 3_000) -> None:
        for _ in range(max_steps):
            if not self.loop.is_busy:
                assert not self.model.open_ids()
                assert not self.cache.tiers.open
                return
            self.loop.step()
        raise AssertionError("somebody never ends")

    def items(self, id: str, choice: int = 0) -> list[EngineItem]:
        return self._items[id, choice]

    def tokens(self, id: str, choice: int = 0) -> list[int]:
        return [token for item in self.items(id, choice) if isinstance(item, Tokens) for token in item.token_ids]

    def end(self, id: str, choice: int = 0) -> Ended:
        end = self.items(id, choice)[-1]
        assert isinstance(end, Ended)
        return end

    def events(self, *kinds: type[Event]) -> list[Any]:
        return [event for batch in self.batches for event in batch.events if isinstance(event, kinds)]
