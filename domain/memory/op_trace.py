"""How much memory a graph of operations takes while it is computed, from the sizes of its arrays alone.

Three rules, which are MLX's own, decide it:

* Order: `eval_order`.
* Room. A result has a buffer of its own, unless it is a view of its input, or takes over the buffer of an input that is
  as large and that nobody reads any more.
* Run-ahead. Operations are handed to the device in groups. A group ends after so many operations or so many elements
  read, and what it reads is kept until it is computed. A few groups wait for the device, which is assumed to be slower
  than the host, as it is wherever memory matters.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from domain.memory.eval_order import evaluation_order

MAX_GROUPS = 11
"""Ten wait, and one is being put together."""

# fmt: off
_VIEWS = frozenset({
    "AsStrided", "Broadcast", "BroadcastAxes", "Contiguous", "Depends", "ExpandDims", "Flatten", "NumberOfElements",
    "Reshape", "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten",
})
_TAKES_OVER = frozenset({
    "Abs", "Add", "AddMM", "AsType", "Ceil", "Clip", "Compiled", "Copy", "Cos", "Divide", "Erf", "Exp", "Expm1",
    "Floor", "LayerNorm", "Log", "Log1p", "LogicalNot", "Maximum", "Minimum", "Multiply", "Negative", "Power",
    "RMSNorm", "Remainder", "RoPE", "Round", "Rsqrt", "Scan", "Scatter", "ScatterAxis", "Select", "Sigmoid", "Sign",
    "Sin", "SliceUpdate", "Softmax", "Sqrt", "Square", "Subtract", "Tanh",
})
# fmt: on


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `reads` and `writes`: arrays by name, in order."""

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RunAhead:
    """When a group of operations is handed over: after so many, or once they read more elements than that; and how many
    groups there are at once, the one included that is being put together."""

    max_ops: int
    max_elements: int
    max_groups: int = MAX_GROUPS


@dataclass(frozen=True, slots=True)
class OpTrace:
    """`sizes`: bytes by array; `elements`: the same in elements. `held`: arrays that are there before, and that nobody
    but the graph holds, as a state that is replaced. `results`: what is asked for."""

    ops: tuple[Op, ...]
    sizes: Mapping[str, int]
    elements: Mapping[str, int]
    held: frozenset[str]
    results: tuple[str, ...]

    def peak_bytes(self, ahead: RunAhead) -> int:
        """The most memory in use at once, beyond the results and what is there before and stays."""
        run = _Run(self, ahead)
        run.compute()
        return run.peak_bytes - sum(room.size_bytes for room in run.result_rooms())

    def ordered(self) -> list[Op]:
        """The operations that the results need, as they are computed."""
        makers = {name: number for number, op in enumerate(self.ops) for name in op.writes}
        inputs = {number: [makers[name] for name in op.reads if name in makers] for number, op in enumerate(self.ops)}
        order = evaluation_order(inputs, [makers[name] for name in self.results if name in makers])
        return [self.ops[number] for number in order]


@dataclass(slots=True, eq=False)
class _Room:
    """One buffer. `num_readers`: operations still to come that read an array in it. `last_read`: the last group that
    did; until it is computed, nobody may write there."""

    size_bytes: int
    num_readers: int = 0
    is_result: bool = False
    last_read: int = -(1 << 60)


@dataclass(slots=True)
class _Run:
    """`leaving`: bytes that nobody reads any more, by the group that was the last to."""

    trace: OpTrace
    ahead: RunAhead
    rooms: dict[str, _Room] = field(default_factory=dict[str, _Room])
    leaving: Counter[int] = field(default_factory=Counter[int])
    readers: Counter[str] = field(default_factory=Counter[str])
    used_bytes: int = 0
    peak_bytes: int = 0
    group: int = 0

    def compute(self) -> None:
        ops = self.trace.ordered()
        self.readers.update(name for op in ops for name in op.reads)
        for name in self.trace.held:
            self._place(name, self._new_room(name))
        num_ops, read = 0, dict[str, int]()
        for op in ops:
            self._write(op)
            self._read(op)
            if op.name in _VIEWS:
                continue
            num_ops += 1
            read.update((name, self.trace.elements[name]) for name in op.reads)
            if num_ops > self.ahead.max_ops or sum(read.values()) > self.ahead.max_elements:
                self.group, num_ops = self.group + 1, 0
                read.clear()
                self.used_bytes -= self.leaving.pop(self.group - self.ahead.max_groups, 0)

    def result_rooms(self) -> set[_Room]:
        return {self.rooms[name] for name in self.trace.results if name in self.rooms}

    def _write(self, op: Op) -> None:
        known = [self.rooms[name] for name in op.reads if name in self.rooms]
        for name in op.writes:
            if op.name in _VIEWS:
                room = known[0] if known else _Room(0)
            else:
                room = self._taken_over(op, known, self.trace.sizes[name]) or self._new_room(name)
            self._place(name, room)
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def _taken_over(self, op: Op, known: list[_Room], size_bytes: int) -> _Room | None:
        if op.name not in _TAKES_OVER:
            return None
        done = self.group - self.ahead.max_groups
        free = (room for room in known if room.num_readers == 1 and not room.is_result and room.last_read <= done)
        return next((room for room in free if room.size_bytes == size_bytes), None)

    def _new_room(self, name: str) -> _Room:
        room = _Room(self.trace.sizes[name])
        self.used_bytes += room.size_bytes
        return room

    def _place(self, name: str, room: _Room) -> None:
        room.num_readers += self.readers[name]
        room.is_result = room.is_result or name in self.trace.results
        self.rooms[name] = room

    def _read(self, op: Op) -> None:
        written = [self.rooms[name] for name in op.writes]
        for name in op.reads:
            if name in self.rooms:
                room = self.rooms[name]
                room.num_readers -= 1
                if room not in written:  # no view of it, and not written over
                    room.last_read = self.group
        for name in (*op.reads, *op.writes):
            left = self.rooms.get(name)
            if left is not None and left.num_readers == 0 and not left.is_result:
                self.leaving[self.group] += left.size_bytes
                left.size_bytes = 0


__all__ = ("MAX_GROUPS", "Op", "OpTrace", "RunAhead")
