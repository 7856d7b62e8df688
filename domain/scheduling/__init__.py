"""What the engine does in one step, and the memory it needs for it. Uses `models`, `prefix` and `memory`."""
