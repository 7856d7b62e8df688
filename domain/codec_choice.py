"""What the measured rates of a disk decide: whether state is compressed, and whether each commit of it is synced.

Compressing. Reading and decoding overlap, so the slower of the two decides how soon state comes back. Raw state costs
its bytes on the disk; compressed state costs fewer, and then the decoder. When both end together the smaller one wins:
the store holds half as much again. Where the disk does not take state as fast as it may be computed, writing decides
instead, by the same rule.

Syncing. Writer and disk take turns where each commit is synced: one copies while the other rests. So the disk has to
take twice what is computed.
"""

from dataclasses import dataclass

TYPICAL_RATIO = 1.47
"""Raw to stored bytes of bfloat16 state, which is what most state is."""

PREFILL_BYTES_S = 1.2e9
"""Raw state as fast as it may come: 8,000 tokens/s of 147 KB, which a 4B model makes on a large GPU."""


@dataclass(frozen=True, slots=True)
class StoreRates:
    """Bytes a second. `disk_bytes_s`: read from the disk when nothing is cached; `decode_bytes_s`: of raw state, by all
    decoding threads together; `write_bytes_s`: written and synced."""

    disk_bytes_s: float
    decode_bytes_s: float
    write_bytes_s: float


@dataclass(frozen=True, slots=True)
class StoreWrites:
    """How a store writes. `durability`: safe or fast; `codec`: zstd or raw. Each by whom: `setting`; `auto`, by the
    measured rates; or `unmeasured`, auto without rates to go by."""

    durability: str
    durability_by: str
    codec: str
    codec_by: str


def compression_pays(rates: StoreRates) -> bool:
    """True when compressed state takes no longer than raw state: to restore, or to store where that is too slow."""
    is_late = rates.write_bytes_s < PREFILL_BYTES_S
    raw_bytes_s = rates.write_bytes_s if is_late else rates.disk_bytes_s
    return min(raw_bytes_s * TYPICAL_RATIO, rates.decode_bytes_s) >= raw_bytes_s


def state_bytes_s(write_bytes_s: float, *, compresses: bool) -> float:
    """Raw bytes of state that a disk takes a second, for as long as anybody likes."""
    return write_bytes_s * (TYPICAL_RATIO if compresses else 1.0)


def syncs_each_commit(write_bytes_s: float, *, compresses: bool) -> bool:
    """False where prompts would be computed faster than commits can be synced, one after the other."""
    return state_bytes_s(write_bytes_s, compresses=compresses) >= 2 * PREFILL_BYTES_S


__all__ = (
    "PREFILL_BYTES_S",
    "TYPICAL_RATIO",
    "StoreRates",
    "StoreWrites",
    "compression_pays",
    "state_bytes_s",
    "syncs_each_commit",
)
