"""State out of the caches and back into them. payload < capture, restore."""
