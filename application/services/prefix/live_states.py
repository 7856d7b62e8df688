"""The live tier: states of sequences that ended, kept in their models as they are until a prompt goes on from one.

Taking a state over copies nothing, so the next turn of a long conversation waits for no restoring. A state goes to one
taker, who may cut it back to where the two part; others of the same prefix use records, which are captured as ever.

What is kept gives way to everything else: within its own budget the least recently used goes first, and when memory
gets short these states go before anything of the hot tier does, which holds the same in a form that several can use.
A sequence that is admitted *claims* the state that it goes on from: that is its own from then on, counts as such, and
gives way to nothing.

Who goes on from a state is who shares most of it: a prompt that only has the same beginning takes nothing, for the
conversation that the state is of would have to be restored then.

Looking (`find`, `usage`, `held_bytes`, `note_cleared`) may be done on any thread; the rest belongs to the compute
thread, which alone may touch a model.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from threading import Lock

from application.ports.cache_stats import LiveUsage
from application.ports.state_access import LeftState, StateAccess
from application.services.memory_ledger import Lease, MemoryLedger, Purpose
from application.services.prefix.indexes import Epoch
from domain.id_row import ID_BYTES
from domain.ids import BlockHash, SequenceId
from domain.prefix.block_grid import BlockGrid
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain
from domain.prefix.match import PrefixMatch

LIVE = "live"

MAX_STATES = 256
"""However small they are: each is some objects a layer, and is compared with prompts that begin like it."""

OUTPUT_BYTES = 40
"""What a state counts for each token that was put out, besides its arrays: a number of its own. A prompt is a row."""

DROP_TRIES = 2
"""A state that could not be dropped is dropped once more: what is left of it otherwise stays until its model goes."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveState:
    """`chain`: the tokens that it covers, and perhaps more. `epoch`: of the sequence that left it. `least`: it is
    taken over at no earlier position. `num_canonical`: up to where it was computed on the grid, from the start."""

    id: SequenceId
    model: StateAccess
    chain: BlockChain
    epoch: Epoch
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
    def place(self) -> BlockHash:
        """The last block that whoever takes it over must share."""
        return self.chain.parent(self.least // self.chain.block_size)

    def reach(self, chain: BlockChain, grid: BlockGrid) -> int:
        """Where a prompt may go on from it; 0: nowhere."""
        if not grid.last_resumable(chain.block_size - 1) and self.chain.hashes[:1] != chain.hashes[:1]:
            return 0  # most states of most prompts: without looking at a token
        shared = min(chain.num_shared(self.chain), chain.num_prompt - 1, self.left.position)
        position = grid.last_resumable(min(shared, self.num_canonical) if grid.is_exact else shared)
        return position if position >= self.least else 0


@dataclass(frozen=True, slots=True)
class Continuation:
    """A state that a prompt may go on from, and where."""

    state: LiveState
    position: int

    @property
    def is_canonical(self) -> bool:
        """Whether the state is there as any other computing of the same tokens would give it."""
        return self.position <= self.state.num_canonical

    def told(self, chain: BlockChain, match: PrefixMatch, grid: BlockGrid) -> PrefixMatch:
        """What the records gave (`match`, no further than here) as an explanation is to have it: what is known of the
        prompt reaches to here at least, and it ends where the two part."""
        size = chain.block_size
        reason = match.reason if self.position == match.position else StopReason.NEVER_SEEN
        if self.position == grid.furthest(chain.num_prompt):
            reason = StopReason.OFF_GRID if grid.is_exact else StopReason.LAST_TOKEN
        num_known = max(match.num_known, self.position // size * size)
        return replace(match, reason=reason, num_known=num_known)


class LiveStates:
    """`memory`: what copies of rows that leave their batch reserve."""

    def __init__(
        self,
        budget_bytes: int = 0,
        fault: Callable[[Exception], object] = lambda _: None,
        memory: MemoryLedger | None = None,
    ) -> None:
        """`fault`: told of a state that could not be dropped."""
        self.budget_bytes = budget_bytes
        self.memory = memory or MemoryLedger()
        self._fault = fault
        self._lock = Lock()
        self._states: OrderedDict[SequenceId, LiveState] = OrderedDict()
        self._places: dict[BlockHash, dict[SequenceId, LiveState]] = {}
        self._claims: dict[SequenceId, LiveState] = {}
        self._used_bytes = self._num_left = self._num_taken = self._num_evicted = 0
        self._has_cleared = False

    @property
    def held_bytes(self) -> int:
        """Of states that nobody has claimed."""
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

    def find(self, chain: BlockChain, model: str, grid: BlockGrid) -> Continuation | None:
        """The state of this model (by name) that the prompt goes on from furthest; of equal ones the latest."""
        best: Continuation | None = None
        with self._lock:
            for state in self._candidates(chain):
                if state.epoch.is_over or state.model_name != model:
                    continue
                if (position := state.reach(chain, grid)) and (best is None or position >= best.position):
                    best = Continuation(state, position)
        return best

    def holds(self, state: LiveState, taker: SequenceId) -> bool:
        """Whether it is still there for this sequence."""
        is_there = self._states.get(state.id) is state or self._claims.get(taker) is state
        return is_there and not state.epoch.is_over

    def has_left(self, id: SequenceId) -> bool:
        """Whether the state that this sequence left is there for anybody."""
        return id in self._states

    def note_wanted(self, state: LiveState) -> None:
        """Somebody in the queue goes on from it, so it is the last to go."""
        with self._lock:
            if state.id in self._states:
                self._states.move_to_end(state.id)

    def claim(self, state: LiveState, taker: SequenceId) -> None:
        """It is there for this sequence, and for nobody else from now on. Repeating it does nothing."""
        if self._claims.get(taker) is not state:
            with self._lock:
                self._forget(state)
                self._claims[taker] = state

    def unclaim(self, taker: SequenceId) -> None:
        """What it claimed, and did not take over, is there for anybody again."""
        with self._lock:
            if (state := self._claims.pop(taker, None)) is not None:
                self._remember(state)
        self.shrink(self.budget_bytes)

    def leave(
        self,
        model: StateAccess,
        id: SequenceId,
        chain: BlockChain,
        epoch: Epoch,
        model_name: str,
        *,
        next_turn: int,
        num_canonical: int,
        size_bytes: int,
    ) -> bool:
        """End an open sequence and keep its state, if there is room and nobody cleared it. `next_turn`: from where on
        whoever goes on from it is expected. `size_bytes`: what it takes, about. False when the sequence is still open.
        """
        if size_bytes > self.budget_bytes or epoch.is_over:
            return False
        left = model.leave(id, may_copy=isinstance(self.memory.reserve(Purpose.LIVE, size_bytes), Lease))
        if left is None:
            return True
        least = max(left.first, min(next_turn, (left.position + 1) // 2), 1)
        if least > chain.num_tokens:  # it ran ahead of what was taken in, and cannot be cut back
            self._let_go(model, id)
            return True
        state = LiveState(id, model, chain, epoch, model_name, left, least, num_canonical)
        with self._lock:
            self._remember(state)
            self._num_left += 1
        self.shrink(self.budget_bytes)
        return True

    def take_over(self, found: Continuation, id: SequenceId) -> None:
        """Put an open, empty sequence of the same model there. Raises as `StateAccess.take_over`; it is gone then."""
        self.claim(found.state, id)
        with self._lock:
            del self._claims[id]
        self._num_taken += 1
        try:
            found.state.model.take_over(id, found.state.id, found.position)
        except Exception:
            self._let_go(found.state.model, found.state.id)
            raise

    def shrink(self, size_bytes: int, spared: SequenceId | None = None) -> int:
        """Hold no more than that, from now; returns how many bytes went. `spared`: what this one left goes last."""
        before = self._used_bytes
        while self._states and (self._used_bytes > size_bytes or len(self._states) > MAX_STATES):
            self._num_evicted += 1
            others = (state for id, state in self._states.items() if id != spared)
            self._drop(next(others, None) or next(iter(self._states.values())))
        return before - self._used_bytes

    def drop_model(self, model: str) -> None:
        """It is about to be unloaded."""
        self._drop_all(lambda state: state.model_name == model)

    def note_cleared(self) -> None:
        """Some namespaces were cleared: their states are given to nobody from now on, and go at the next `sweep`."""
        self._has_cleared = True

    def sweep(self) -> None:
        """Let go of what was cleared. Cheap while nothing was."""
        if self._has_cleared:
            self._has_cleared = False
            self._drop_all(lambda state: state.epoch.is_over)

    def check_integrity(self) -> list[str]:
        """Recount everything; one line for each problem, empty when sound."""
        with self._lock:
            states = list(self._states.values())
            kept = [*states, *self._claims.values()]
            problems = [f"{state.id} is not in its model" for state in kept if state.id not in state.model.left_ids()]
            if (counted := sum(state.size_bytes for state in states)) != self._used_bytes:
                problems.append(f"{self._used_bytes} bytes accounted, {counted} counted")
            placed = [state for place in self._places.values() for state in place.values()]
            if {state.id for state in placed} != set(self._states):
                problems.append(f"{len(states)} states, and {len(placed)} can be found")
            if self._used_bytes > self.budget_bytes:
                problems.append(f"{self._used_bytes} bytes used of {self.budget_bytes}")
            return problems

    def _candidates(self, chain: BlockChain) -> Iterator[LiveState]:
        """Those whose last needed block is one of the prompt's; in no order that counts."""
        for place in chain.ends():
            if place in self._places:
                yield from self._places[place].values()

    def _drop_all(self, is_meant: Callable[[LiveState], bool]) -> None:
        with self._lock:
            for taker in [taker for taker, state in self._claims.items() if is_meant(state)]:
                self._remember(self._claims.pop(taker))
        for state in [state for state in self._states.values() if is_meant(state)]:
            self._drop(state)

    def _drop(self, state: LiveState) -> None:
        with self._lock:
            self._forget(state)
        self._let_go(state.model, state.id)

    def _let_go(self, model: StateAccess, id: SequenceId) -> None:
        for _ in range(DROP_TRIES):
            try:
                model.drop([id])
            except Exception as error:
                self._fault(error)
            else:
                return

    def _remember(self, state: LiveState) -> None:
        """With the lock held."""
        self._states[state.id] = state
        self._places.setdefault(state.place, {})[state.id] = state
        self._used_bytes += state.size_bytes

    def _forget(self, state: LiveState) -> None:
        """With the lock held."""
        del self._states[state.id]
        self._used_bytes -= state.size_bytes
        place = self._places[state.place]
        del place[state.id]
        if not place:
            del self._places[state.place]
