"""Whether the engine moves, and what the last minutes were like. Uses `prefix` for the reasons of misses."""
