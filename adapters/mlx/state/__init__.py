"""State out of the caches and back into them: capture, payloads, restore. Uses `caches` and `runtime`."""
