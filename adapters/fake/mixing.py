"""A 64-bit mixing function: every output bit depends on every input bit. What the toy model computes with."""

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(value: int) -> int:
    """Scramble `value` (taken modulo 2**64) into 0 <= result < 2**64."""
    value &= MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def unit(value: int) -> float:
    """A number in (0, 1) that is a function of `value` alone."""
    return (mix(value) + 0.5) / 2.0**64


__all__ = ("GOLDEN", "MASK", "mix", "unit")
