"""Whether compressed state comes back sooner than raw state: the disk against the decoder.

Reading and decoding overlap, so the slower of the two decides. Raw state costs its bytes on the disk; compressed state
costs fewer, and then the decoder. When both end together the smaller one wins: the store holds half as much again.
"""

from dataclasses import dataclass

TYPICAL_RATIO = 1.47
"""Raw to stored bytes of bfloat16 state, which is what most state is."""


@dataclass(frozen=True, slots=True)
class StoreRates:
    """Bytes a second. `disk_bytes_s`: read from the disk when nothing is cached; `decode_bytes_s`: of raw state, by all
    decoding threads together; `write_bytes_s`: written and synced."""

    disk_bytes_s: float
    decode_bytes_s: float
    write_bytes_s: float


def compression_pays(rates: StoreRates) -> bool:
    """True when a cold restore of compressed state takes no longer than of raw state."""
    compressed_bytes_s = min(rates.disk_bytes_s * TYPICAL_RATIO, rates.decode_bytes_s)
    return compressed_bytes_s >= rates.disk_bytes_s


def state_bytes_s(write_bytes_s: float, *, compresses: bool) -> float:
    """Raw bytes of state that a disk takes a second, for as long as anybody likes."""
    return write_bytes_s * (TYPICAL_RATIO if compresses else 1.0)


__all__ = ("TYPICAL_RATIO", "StoreRates", "compression_pays", "state_bytes_s")
