"""The ledger adds up, and what was read counts where it is more."""

from domain.memory.ledger import MemoryLedger, MemoryLimits, MemoryReading

LIMITS = MemoryLimits(1000, 800, 900, 950)


def test_every_purpose_counts_once():
    purposes = ("weight", "state", "hot", "queued", "flight", "other", "growth", "transient")
    ledger = MemoryLedger(**{f"{name}_bytes": 2**index for index, name in enumerate(purposes)}, limits=LIMITS)
    assert ledger.used_bytes == 2 ** len(purposes) - 1
    assert ledger.room_bytes == 950 - ledger.used_bytes


def test_a_reading_counts_where_it_tells_more_than_the_margin_and_promises_come_on_top():
    known = MemoryLedger(weight_bytes=100, growth_bytes=10, transient_bytes=20, reading_bytes=50, limits=LIMITS)
    assert known.held_bytes == 100
    assert known.used_bytes == 130
    more = MemoryLedger(weight_bytes=100, growth_bytes=10, transient_bytes=20, reading_bytes=400, limits=LIMITS)
    assert more.used_bytes == 400 - LIMITS.margin_bytes + 30
    assert more.room_bytes == 570


def test_room_is_never_negative_and_none_without_limits():
    assert MemoryLedger(weight_bytes=2000, limits=LIMITS).room_bytes == 0
    assert MemoryLedger(weight_bytes=2000).room_bytes is None


def test_usage_is_a_share_of_what_open_sequences_can_have() -> None:
    assert MemoryLedger(state_bytes=9).kv_usage == 0.0, "not bounded"
    room = MemoryLedger(weight_bytes=100, limits=LIMITS).kv_room_bytes
    assert room == LIMITS.hard_bytes - 100
    held = MemoryLedger(weight_bytes=100, live_bytes=50, hot_bytes=50, limits=LIMITS)
    assert held.kv_usage == 0.0, "what is kept is evicted for them"
    assert MemoryLedger(weight_bytes=100, growth_bytes=room, limits=LIMITS).kv_usage == 1.0
    assert MemoryLedger(weight_bytes=2000, state_bytes=1, limits=LIMITS).kv_usage == 1.0


def test_freed_buffers_are_not_use():
    assert MemoryReading(held_bytes=500, cached_bytes=450).used_bytes == 50
    assert MemoryReading(cached_bytes=450).used_bytes is None
