"""A model folder to a loaded model: looked at, read, identified, probed, measured. Uses every sibling."""
