"""The lookup against an oracle that tries every position and looks at tokens, not at groups of blocks."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from adapters.fake import ATTENTION, COMPOSITE_PAIRS, EVERYTHING, HYBRID, RECURRENT_ONLY, WINDOWED, windowed
from domain.id_row import IdRow
from domain.models.state_layout import HitPolicy, StateLayout
from domain.prefix.explanation import StopReason
from domain.prefix.hashing import BlockChain, snapshot_key
from domain.prefix.index import PrefixMatch, ReuseRules, find_prefix
from domain.prefix.prompt_content import BlockGrid
from domain.prefix.record import Namespace

ROOT = Namespace(b"r" * 32)
BLOCK = 4
WINDOW_ONLY = StateLayout((windowed(6),))
layouts = st.sampled_from([ATTENTION, WINDOWED, WINDOW_ONLY, RECURRENT_ONLY, HYBRID, COMPOSITE_PAIRS, EVERYTHING])


@dataclass
class Case:
    prompt: list[int]
    present: list[bool]
    snapshots: set[int]
    rules: ReuseRules


@st.composite
def cases(draw: st.DrawFn) -> Case:
    prompt = draw(st.lists(st.integers(0, 5), min_size=1, max_size=41))
    num_blocks = len(prompt) // BLOCK
    present = draw(st.lists(st.booleans() | st.just(True), min_size=num_blocks, max_size=num_blocks))
    snapshots = draw(st.sets(st.integers(1, len(prompt))))
    rules = ReuseRules.of(draw(layouts), BlockGrid(BLOCK, 8, draw(st.booleans())))
    return Case(prompt, present, snapshots, rules)


def oracle(case: Case) -> int:
    """The furthest position at which each group finds every token it needs, or a snapshot that has them."""
    for position in range(len(case.prompt) - 1, 0, -1):
        if case.rules.grid.is_exact and position % case.rules.grid.step:
            continue
        has_snapshot = position in case.snapshots
        whole = position // BLOCK * BLOCK
        held = {at for at in range(whole) if case.present[at // BLOCK]}
        held |= set(range(whole, position)) if has_snapshot else set()
        needed: set[int] = set()
        for group in case.rules.groups:
            if group.policy is HitPolicy.SNAPSHOT and not has_snapshot:
                needed.add(-1)
            elif group.policy is HitPolicy.ALL:
                needed |= set(range(position))
            elif group.policy is HitPolicy.TRAILING:
                assert group.window
                needed |= set(range(max(0, position - group.window), position))
        partial_is_held = position == whole or has_snapshot
        if needed <= held and partial_is_held:
            return position
    return 0


def look_up(case: Case) -> tuple[PrefixMatch, BlockChain]:
    chain = BlockChain(ROOT, BLOCK, IdRow(case.prompt))
    found = {}
    for position in case.snapshots:
        if position < len(case.prompt):
            whole = position // BLOCK
            found[position] = snapshot_key(ROOT, chain.parent(whole), case.prompt[whole * BLOCK : position])
    return find_prefix(len(case.prompt), chain, case.present, found, case.rules), chain


@given(cases())
def test_it_finds_the_furthest_restorable_position(case: Case) -> None:
    assert look_up(case)[0].position == oracle(case)


@given(cases(), st.integers(0, 40))
def test_the_groups_of_all_blocks_at_once_are_those_of_each(case: Case, position: int) -> None:
    num_blocks = position // BLOCK
    each = [case.rules.needed_groups(position, index) for index in range(num_blocks)]
    assert case.rules.all_needed_groups(position, num_blocks) == each


@given(cases())
def test_what_it_asks_for_is_present_and_enough(case: Case) -> None:
    match, chain = look_up(case)
    assert match.position < len(case.prompt)
    blocks = match.needs[: match.position // BLOCK]
    assert [need.key for need in blocks] == list(chain.prompt_keys()[: len(blocks)])
    for index, need in enumerate(blocks):
        assert case.present[index] or not need.groups
        for group in case.rules.groups:
            in_reach = (index + 1) * BLOCK > match.position - (group.window or 0)
            wanted = group.policy is HitPolicy.ALL or (group.policy is HitPolicy.TRAILING and in_reach)
            assert (group.index in need.groups) == wanted
    inside_block = match.position % BLOCK != 0
    assert sum(need.num_tokens for need in match.needs) == match.position
    has_snapshot = bool(match.position and (case.rules.needs_snapshots or inside_block))
    assert [need.key for need in match.needs[len(blocks) :]] == [
        match.snapshots[position] for position in [match.position] if has_snapshot
    ]


@given(cases())
def test_the_reason_fits_what_is_there(case: Case) -> None:
    match, _ = look_up(case)
    if match.position == len(case.prompt) - 1:
        assert match.reason is StopReason.LAST_TOKEN
    elif match.reason is StopReason.NO_SNAPSHOT:
        assert case.rules.needs_snapshots
        assert match.num_known > match.position
    elif match.reason is StopReason.OFF_GRID:
        assert case.rules.grid.is_exact
    elif match.reason is StopReason.PARTIAL_BLOCK:
        assert match.num_known >= len(case.prompt) - 1 or case.rules.grid.is_exact
    else:
        assert match.reason is StopReason.NEVER_SEEN
        assert match.num_known <= match.position or match.position == 0


def test_an_absent_block_that_was_here_before_is_reported_as_evicted() -> None:
    chain = BlockChain(ROOT, BLOCK, IdRow(range(20)))
    rules = ReuseRules.of(ATTENTION, BlockGrid(BLOCK, 8))
    present = [True, True, False, True, True]
    assert find_prefix(20, chain, present, {}, rules).reason is StopReason.NEVER_SEEN
    match = find_prefix(20, chain, present, {}, rules, evicted={2})
    assert (match.position, match.reason) == (8, StopReason.EVICTED)
