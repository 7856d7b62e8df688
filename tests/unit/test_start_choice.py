"""What a sequence starts from where it could start from several things, without anything being fetched or followed."""

from dataclasses import dataclass

from adapters.fake import ATTENTION, FakeClock
from application.services.prefix.cache_context import CacheContext
from application.services.prefix.flights import Flights
from application.services.prefix.hot_tier import HotTier
from application.services.prefix.phases import Following, Held, Ready
from application.services.prefix.start_choice import MAX_FAILED_FETCHES, StartChoice
from application.services.prefix.store_lanes import StoreLanes
from application.services.prefix.tiers import PrefixTiers
from domain.block_grid import BlockGrid
from domain.hashing import BlockChain
from domain.holdings import Holdings
from domain.id_row import IdRow
from domain.ids import RequestId, SequenceId
from domain.prefix import ReuseRules
from domain.record import Provenance, Record
from tests.support.lanes import InlineLane
from tests.support.store_records import BLOCK_TOKENS, EventList, namespace_of, payload_of

INFO = namespace_of("org/one")
RULES = ReuseRules.of(ATTENTION, BlockGrid(BLOCK_TOKENS, 4 * BLOCK_TOKENS))
CHAIN = BlockChain(INFO.namespace, BLOCK_TOKENS, IdRow(range(4 * BLOCK_TOKENS)))
STORED = {"store": Holdings((True,) * 3)}


@dataclass(frozen=True)
class Earlier:
    """An InFlight at the beginning of the same prompt."""

    id: SequenceId = SequenceId(1)
    request_id: RequestId = RequestId("earlier")
    chain: BlockChain | None = CHAIN
    position: int = 0
    is_admitted: bool = False
    shares: bool = True

    def expect(self, position: int) -> None:
        raise AssertionError("choosing tells nobody")


def choice_of(*others: Earlier, hot_bytes: int = 1 << 20, restores: bool = True) -> tuple[StartChoice, HotTier]:
    clock, events, lane = FakeClock(), EventList(), InlineLane()
    hot = HotTier(hot_bytes)
    tiers = PrefixTiers(hot, [], StoreLanes(clock, events, readers=lane, lookups=lane, upkeep=lane))
    open = {other.id: other for other in others}
    context = CacheContext(tiers, clock, events, lane, dict(open), lambda: None, Flights())
    return StartChoice(context, SequenceId(2), INFO, RULES, restores=restores), hot


def put_blocks(hot: HotTier) -> None:
    for index, key in enumerate(CHAIN.prompt_keys()):
        end = (index + 1) * BLOCK_TOKENS
        groups = {group: payload_of(key.hash, 64) for group in RULES.sliced_groups}
        ids = CHAIN.key_ids(end - BLOCK_TOKENS, end)
        hot.put([Record(key, CHAIN.parent(index), end, ids, groups, Provenance.PREFILL)])


def test_what_was_gone_too_often_is_computed() -> None:
    choice, _ = choice_of()
    found = choice.match(CHAIN, STORED)
    for _ in range(MAX_FAILED_FETCHES):
        choice.note_gone(frozenset())
    assert choice.best(found, is_ahead=False) == Held(found)
    choice.note_gone(frozenset())
    assert choice.best(found, is_ahead=False) == Ready(found)


def test_what_did_not_come_in_time_is_left_out_once_and_what_is_gone_for_good() -> None:
    choice, _ = choice_of()
    last = frozenset({CHAIN.prompt_keys()[2]})
    assert choice.match(CHAIN, STORED, last).match.position == 2 * BLOCK_TOKENS
    assert choice.match(CHAIN, STORED).match.position == 3 * BLOCK_TOKENS
    choice.note_gone(last)
    assert choice.match(CHAIN, STORED).match.position == 2 * BLOCK_TOKENS


def test_an_earlier_sequence_is_followed_only_where_what_it_computes_is_kept() -> None:
    for hot_bytes, phase in ((1 << 20, Following), (0, Ready)):
        choice, _ = choice_of(Earlier(), hot_bytes=hot_bytes)
        assert type(choice.best(choice.match(CHAIN, {}), is_ahead=True)) is phase


def test_who_is_admitted_does_not_follow_who_waits() -> None:
    for is_admitted, is_ahead, phase in ((False, False, Ready), (False, True, Following), (True, False, Following)):
        choice, _ = choice_of(Earlier(is_admitted=is_admitted))
        assert type(choice.best(choice.match(CHAIN, {}), is_ahead=is_ahead)) is phase


def test_what_came_in_since_is_better_only_for_who_restores() -> None:
    for restores in (True, False):
        choice, hot = choice_of(restores=restores)
        before = Ready(choice.match(CHAIN, {}))
        assert choice.better(before, is_charged=False) is None
        put_blocks(hot)
        now = choice.in_memory(CHAIN)
        assert now.match.position > 2 * BLOCK_TOKENS
        assert choice.better(before, is_charged=False) == (Held(now) if restores else None)
