"""The health of the engine and the figures of the last minutes. Uses `prefix` for the names of tiers."""
