"""Models that see, and the pictures that they are shown."""
