"""The live tier: states of sequences that ended, kept in their models as they are until a prompt continues one.

Taking a state over copies nothing, so the next turn of a long conversation waits for no restoring. A state goes to one
sequence, which may cut it back to where the two token streams part. Other prompts with the same prefix use records,
which are captured in any case.

Live states are evicted before anything else: by this tier's own budget the least recently used first, and when memory
gets short before anything of the hot tier, which holds the same in a form that several sequences can use. A sequence
that is admitted *claims* the state that it continues: from then on the state counts as the sequence's own and is not
evicted.

Only a prompt that shares most of a state may take it over. Otherwise the conversation that owns the state would have to
be restored from records.

`find`, `has`, `usage`, `held_bytes` and `note_ended` may be called from any thread; the rest belongs to the compute
thread, which alone may touch a model.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from application.ports.cache_stats import LiveUsage
from application.ports.state_access import LeftState, StateAccess
from application.services.memory_leases import Lease, MemoryLeases, Purpose
from domain.id_row import ID_BYTES
from domain.ids import BlockHash, SequenceId
from domain.prefix.hashing import BlockChain
from domain.prefix.index import PrefixIndex
from domain.prefix.prompt_content import BlockGrid

MAX_STATES = 256
"""A limit for small states too: each costs some objects a layer, and is compared with prompts that begin like it."""

OUTPUT_BYTES = 40
"""Memory of a state for each generated token besides its arrays: a Python integer. A prompt is an array."""

DROP_TRIES = 2
"""A state whose dropping failed is dropped once more: otherwise its remains stay until the model is unloaded."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveState:
    """The state of an ended sequence. `chain`: the tokens that it covers, and perhaps more. `epoch`: of the sequence
    that left it. `least`: the first position at which it may be taken over. `num_canonical`: tokens from the start that
    were computed on the grid."""

    id: SequenceId
    model: StateAccess
    chain: BlockChain
    epoch: PrefixIndex
    model_name: str
    left: LeftState
    least: int
    num_canonical: int

    @property
    def size_bytes(self) -> int:
        num_prompt = self.chain.num_prompt
        num_output = self.chain.num_tokens - num_prompt
        return self.left.size_bytes + ID_BYTES * num_prompt + OUTPUT_BYTES * num_output

    @property
    def last_needed(self) -> BlockHash:
        """The last block that a prompt must share to take it over."""
        return self.chain.parent(self.least // self.chain.block_size)

    def reach(self, chain: BlockChain, grid: BlockGrid) -> int:
        """The position at which a prompt may continue it; 0 for none."""
        if not grid.last_resumable(chain.block_size - 1) and self.chain.hashes[:1] != chain.hashes[:1]:
            return 0  # most states of most prompts: without looking at a token
        shared = min(chain.num_shared(self.chain), chain.num_prompt - 1, self.left.position)
        position = grid.last_resumable(min(shared, self.num_canonical) if grid.is_exact else shared)
        return position if position >= self.least else 0


class LiveTier:
    """The live states by the id of the sequence that left them. `memory`: where the copies of rows that leave
    their batch are reserved."""

    name = "live"

    def __init__(
        self,
        budget_bytes: int = 0,
        report_fault: Callable[[Exception], object] = lambda _: None,
        memory: MemoryLeases | None = None,
    ) -> None:
        """`report_fault` is called when a state could not be dropped."""
        self.budget_bytes = budget_bytes
        self.memory = memory or MemoryLeases()
        self._report_fault = report_fault
        self._lock = Lock()
        self._states: OrderedDict[SequenceId, LiveState] = OrderedDict()
        self._claims: dict[SequenceId, LiveState] = {}
        self._used_bytes = self._num_left = self._num_taken = self._num_evicted = 0
        self._has_cleared = False

    @property
    def held_bytes(self) -> int:
        """Bytes of states that no sequence has claimed."""
        return self._used_bytes

    def usage(self) -> LiveUsage:
        with self._lock:
            return LiveUsage(
                budget_bytes=self.budget_bytes,
                used_bytes=self._used_bytes + sum(state.size_bytes for state in self._claims.values()),
                num_states=len(self._states) + len(self._claims),
                left=self._num_left,
                taken=self._num_taken,
                evicted=self._num_evicted,
            )

    def has(self, id: SequenceId) -> bool:
        """Returns whether the state that this sequence left is here and no sequence has claimed it."""
        return id in self._states

    def note_ended(self) -> None:
        """Notes that epochs have ended: lookups find their states no more, and the next `sweep` frees them."""
        self._has_cleared = True

    def sweep(self) -> None:
        """Frees the cleared states. Cheap while there are none."""
        if self._has_cleared:
            self._has_cleared = False
            self._drop_all(lambda state: state.epoch.is_over)

    def drop_model(self, model: str) -> None:
        """Frees the states of a model that is about to be unloaded."""
        self._drop_all(lambda state: state.model_name == model)

    def find(self, chain: BlockChain, model: str, grid: BlockGrid) -> tuple[LiveState, int] | None:
        """Returns the state of this model (by name) that covers most of the prompt, and the position to continue at; of
        equal ones the most recently used."""
        best: tuple[LiveState, int] | None = None
        with self._lock:
            ends = frozenset(chain.ends()) if self._states else frozenset[BlockHash]()
            for state in self._states.values():
                if state.last_needed not in ends or state.epoch.is_over or state.model_name != model:
                    continue
                if (position := state.reach(chain, grid)) and (best is None or position >= best[1]):
                    best = state, position
        return best

    def holds(self, state: LiveState, taker: SequenceId) -> bool:
        """Returns whether this sequence may still take the state over."""
        is_there = self._states.get(state.id) is state or self._claims.get(taker) is state
        return is_there and not state.epoch.is_over

    def touch(self, state: LiveState) -> None:
        """Marks the state as wanted by a queued sequence, so that it is evicted last."""
        with self._lock:
            if state.id in self._states:
                self._states.move_to_end(state.id)

    def claim(self, state: LiveState, taker: SequenceId) -> None:
        """Reserve the state for one sequence. Idempotent."""
        if self._claims.get(taker) is not state:
            with self._lock:
                self._remove(state)
                self._claims[taker] = state

    def unclaim(self, taker: SequenceId) -> None:
        """Gives back the state that the sequence claimed and did not take over."""
        with self._lock:
            if (state := self._claims.pop(taker, None)) is not None:
                self._add(state)
        self.shrink(self.budget_bytes)

    def keep_live(
        self,
        model: StateAccess,
        id: SequenceId,
        chain: BlockChain,
        epoch: PrefixIndex,
        model_name: str,
        *,
        next_turn: int,
        num_canonical: int,
        size_bytes: int,
    ) -> bool:
        """End an open sequence and keep its state, if there is room and its namespace was not cleared. `next_turn`: the
        first position at which the next turn is expected to continue it. `size_bytes`: an estimate of the state. False
        when the sequence is still open."""
        if size_bytes > self.budget_bytes or epoch.is_over:
            return False
        left = model.keep_live(id, may_copy=isinstance(self.memory.reserve(Purpose.LIVE, size_bytes), Lease))
        if left is None:
            return True
        least = max(left.first, min(next_turn, (left.position + 1) // 2), 1)
        if least > chain.num_tokens:  # it ran ahead of the known tokens, and cannot be cut back
            self._free(model, id)
        else:
            with self._lock:
                self._add(LiveState(id, model, chain, epoch, model_name, left, least, num_canonical))
                self._num_left += 1
            self.shrink(self.budget_bytes)
        return True

    def take_over(self, state: LiveState, id: SequenceId, position: int) -> None:
        """Move the state, cut back to `position`, to an open and empty sequence of the same model. Raises as
        `StateAccess.take_over`; the state is gone then."""
        self.claim(state, id)
        with self._lock:
            del self._claims[id]
        self._num_taken += 1
        try:
            state.model.take_over(id, state.id, position)
        except Exception:
            self._free(state.model, state.id)
            raise

    def shrink(self, size_bytes: int, spared: SequenceId | None = None) -> int:
        """Evicts down to `size_bytes`; returns the freed bytes. The state that `spared` left is evicted last."""
        before = self._used_bytes
        while self._states and (self._used_bytes > size_bytes or len(self._states) > MAX_STATES):
            self._num_evicted += 1
            others = (id for id in self._states if id != spared)
            self._drop(self._states[next(others, next(iter(self._states)))])
        return before - self._used_bytes

    def check_integrity(self) -> list[str]:
        """Recounts everything; returns one line for each problem, empty when sound."""
        with self._lock:
            states = list(self._states.values())
            kept = [*states, *self._claims.values()]
            problems = [f"{state.id} is not in its model" for state in kept if state.id not in state.model.left_ids()]
            if (counted := sum(state.size_bytes for state in states)) != self._used_bytes:
                problems.append(f"{self._used_bytes} bytes accounted, {counted} counted")
            if self._used_bytes > self.budget_bytes:
                problems.append(f"{self._used_bytes} bytes used of {self.budget_bytes}")
            return problems

    def _drop_all(self, is_meant: Callable[[LiveState], bool]) -> None:
        with self._lock:
            for taker in [taker for taker, state in self._claims.items() if is_meant(state)]:
                self._add(self._claims.pop(taker))
        for state in [state for state in self._states.values() if is_meant(state)]:
            self._drop(state)

    def _drop(self, state: LiveState) -> None:
        with self._lock:
            self._remove(state)
        self._free(state.model, state.id)

    def _free(self, model: StateAccess, id: SequenceId) -> None:
        for _ in range(DROP_TRIES):
            try:
                model.drop([id])
            except Exception as error:
                self._report_fault(error)
            else:
                return

    def _add(self, state: LiveState) -> None:
        """With the lock held."""
        self._states[state.id] = state
        self._used_bytes += state.size_bytes

    def _remove(self, state: LiveState) -> None:
        """With the lock held."""
        del self._states[state.id]
        self._used_bytes -= state.size_bytes
