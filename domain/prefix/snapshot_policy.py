"""The snapshot policy: the positions at which snapshots are taken, and those dropped when a chain has many.

For a model with recurrent layers a snapshot is the only way to resume, and each one is a full state: few, well placed.
For an attention-only model it is the tail of a partial block: cheap, needed only where no block boundary is near.

    prompt   |-- system, tools --|-- turn --|-- turn --|- opening -|
                                 ^          ^          ^           ^
                         SYSTEM_END        TURN    NEXT_TURN   prompt end (all but the last token)

The lattice covers edits in the middle: the last position on the grid, and those grid, 2 grid, 4 grid, ... before it.
Just before NEXT_TURN stands MORE_SAID, where the last message is continued instead of answered. The end of the prompt
always has one, so that a repeat computes one token.

With recurrent layers each position ends a pass of the network, for which the first token waits, and saves a branch
behind it the tokens since the position that was resumed at. In a short turn only NEXT_TURN and the end have one.
"""

from collections.abc import Collection, Sequence

from domain.prefix.index import ReuseRules
from domain.prefix.prompt_content import ForkKind, ForkPoint

MAX_TURNS = 2
"""The last turn boundaries that get a snapshot; earlier ones had theirs when they were last."""

MIN_GAP = 32
"""A turn boundary this many tokens or fewer before NEXT_TURN or the end is skipped, and with recurrent layers NEXT_TURN
and SYSTEM_END that are as close behind the snapshot that was resumed at."""

SHORT_TURN = 256
"""With recurrent layers, any other position less than this (or than a chunk) behind the one where computing begins gets
none: a pass of its own takes as long as 10 tokens of a longer one on a CPU, and far more on a GPU."""

BEFORE_ANSWER = frozenset({ForkKind.NEXT_TURN, ForkKind.MORE_SAID})
"""Fork points at which the next turn of a conversation parts from this one at the latest."""

BRANCHES = frozenset({ForkKind.NEXT_TURN, ForkKind.SYSTEM_END})
"""Fork points at which most requests branch off."""

END_GAP = 16
"""With recurrent layers, an answer that ends this close behind the last snapshot gets none: computing so little is
cheaper."""


def plan_snapshots(num_prompt: int, start: int, forks: Sequence[ForkPoint], rules: ReuseRules) -> tuple[int, ...]:
    """Returns the positions in (start, num_prompt - 1] at which a snapshot is worth taking, ascending.

    `start`: where computing begins (everything up to there is restored). At most MAX_TURNS + 1 + log2(num_prompt) of
    them with recurrent layers, without the last term otherwise, and one for each fork that is no turn.
    """
    end = num_prompt - 1
    wanted = _fork_positions(forks, end) | {end}
    if rules.needs_snapshots:
        step = rules.grid.step
        gap = MIN_GAP if start % step else 0
        branches = {fork.position for fork in forks if fork.kind in BRANCHES and fork.position > start + gap} | {end}
        far = start + max(gap + 1, min(SHORT_TURN, step))
        wanted = {at for at in wanted | set(lattice(end, step)) if at in branches or at >= far}
    wanted = {rules.grid.last_resumable(position) for position in wanted}
    if not rules.needs_snapshots:
        wanted = {position for position in wanted if position % rules.grid.block_size}
    return tuple(sorted(position for position in wanted if start < position <= end))


def is_end_worthwhile(position: int, last_snapshot: int, rules: ReuseRules) -> bool:
    """Returns whether to take a snapshot where a sequence ends (its answer is complete, or it was cancelled).

    `last_snapshot`: the nearest position before at which it can be resumed anyway.
    """
    if not rules.grid.is_resumable(position):
        return False
    if not rules.needs_snapshots:
        return position > last_snapshot and position % rules.grid.block_size != 0
    return position >= last_snapshot + END_GAP


def _fork_positions(forks: Sequence[ForkPoint], end: int) -> set[int]:
    """Returns the positions of all fork points, but of turns only the last; a fork after the last computed token moves
    to it."""
    wanted = {min(fork.position, end) for fork in forks if fork.kind is not ForkKind.TURN}
    near = {min(fork.position, end) for fork in forks if fork.kind in BEFORE_ANSWER} | {end}
    turns = sorted(
        fork.position
        for fork in forks
        if fork.kind is ForkKind.TURN and all(not fork.position <= other <= fork.position + MIN_GAP for other in near)
    )
    return wanted | {position for position in turns[-MAX_TURNS:] if position < end}


def lattice(end: int, grid: int) -> tuple[int, ...]:
    """Returns the last grid position before `end`, and those grid, 2 grid, 4 grid, ... before it: at most log2(end /
    grid) + 2. A branch at distance d from `end` finds one of them, or the start, within max(d, grid) before it.
    """
    last = (end - 1) // grid * grid
    positions: list[int] = []
    distance = 0
    while distance < last:
        positions.append(last - distance)
        distance = 2 * distance or grid
    return tuple(reversed(positions))


def thin_snapshots(
    positions: Sequence[int], end: int, protected: Collection[int], preferred: Collection[int] = ()
) -> tuple[int, ...]:
    """Returns the positions of a chain's snapshots (all at or before `end`) to drop, ascending.

    Kept: the protected ones (system end, next turn, prompt end), and of each doubling of the distance to `end` the
    earliest and one more, where a preferred one (a turn boundary) beats any other and then the later one wins. So
    a prompt that could resume at a dropped one finds a kept one before it, less than twice as far from `end`.
    """
    by_distance: dict[int, list[int]] = {}
    for position in set(positions) - set(protected):
        by_distance.setdefault((end - position).bit_length(), []).append(position)
    dropped: list[int] = []
    for members in by_distance.values():
        members.sort()
        best = max(members[1:], key=lambda position: (position in preferred, position), default=None)
        dropped += [position for position in members[1:] if position != best]
    return tuple(sorted(dropped))
