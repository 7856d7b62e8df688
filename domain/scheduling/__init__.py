"""The plan of one engine step, and the memory that it needs. Depends on `models`, `prefix` and `memory`."""
