"""The health of the engine and the figures of the last minutes. Uses `prefix` (names of tiers) and `models` (pace)."""
