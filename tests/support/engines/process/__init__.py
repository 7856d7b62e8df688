"""Support for tests of an engine's process: its child, its wire and its end."""
